# membound: the two commands are `make demo` and `make test`. Both build .venv on the first call and find it current afterwards.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Stamps: written last, so that an interrupted install is simply done again.
BASE := $(VENV)/.base-installed
DEV := $(VENV)/.dev-installed

.DEFAULT_GOAL := help
.PHONY: help demo test browser test-long coverage bench lint types layers unit format readme docs accuracy clean
.NOTPARALLEL:

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(BASE)  ## simulate a chat workload on one H100
	$(BIN)/membound simulate examples/demo-chat.yaml

test: lint layers types browser unit  ## every check that a change must pass

lint: $(DEV)  ## style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

layers: $(DEV)  ## who may import whom
	$(BIN)/lint-imports --no-cache --no-logo

types: $(DEV)  ## strict types in hwmodels and sim
	$(BIN)/basedpyright

browser:  ## a Chromium for the tests of the dashboard, where one can be had; without it they are skipped
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		{ apt-get update && apt-get install -y --no-install-recommends chromium; } >/dev/null 2>&1; } || \
		echo "no Chromium here: the browser tests of the dashboard are skipped"

unit: $(DEV)  ## the tests alone, on every core
	$(BIN)/pytest --numprocesses auto --dist worksteal

coverage: $(DEV)  ## how much of hwmodels, sim and calibrate the tests run through
	$(BIN)/pytest --numprocesses auto --dist worksteal --cov membound.hwmodels --cov membound.sim --cov membound.calibrate --cov-fail-under 92

test-long: $(DEV)  ## fifteen times as many random scenarios and synthetic devices through laws, rules and fits; fifty kills
	MEMBOUND_EXAMPLES=750 $(BIN)/pytest tests/invariants tests/oracle tests/calibrate/test_recovery.py tests/app/test_kills.py

mutants: $(DEV)  ## twenty wrong lines, one at a time, each of which a few tests must notice; half an hour
	$(BIN)/python benchmarks/mutants.py

wheel-check: $(DEV)  ## the wheel alone in clean environments (PYTHONS="python3.11 python3.13"), outside the repository
	$(BIN)/python benchmarks/wheel_check.py $(PYTHONS)

bench: $(BASE)  ## what a simulated request costs
	$(BIN)/python benchmarks/speed.py

format: $(DEV)  ## rewrite the code in the house format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

readme: $(DEV)  ## run the commands of README and docs/ and quote what they print now
	$(BIN)/python tests/test_readme.py

docs: $(DEV)  ## the pages of docs/ as a site in build/docs, which needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

accuracy: $(DEV)  ## errors and bars of the benchmarks into docs/accuracy-figures; takes ../shared/measured and a quarter of an hour
	mkdir -p docs/accuracy-figures
	for what in kernel_accuracy serving_accuracy kv_blocks; do \
		test $$what = kv_blocks && jobs= || jobs="--jobs -1"; \
		$(BIN)/python benchmarks/$$what.py $$jobs > docs/accuracy-figures/$$what.txt || failed=1; done; exit $${failed:-0}

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "membound needs Python 3.11 or newer; none found (name one with PYTHON=...)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(BASE): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev]'
	@touch $(BASE) $@
