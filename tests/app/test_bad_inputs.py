"""What an attacker sends: sections, files and options that cannot be, each refused soon, in one line."""

from __future__ import annotations

import copy
import gzip
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

from .conftest import SMALL

LIMIT_S = 10.0
"""CPU time one input may take [s]."""
NAN, INF = float("nan"), float("inf")
WORKLOAD = yaml.safe_load(SMALL)["workload"]
BOMB = "".join(f"b{at}: &b{at} [{', '.join([f'*b{at - 1}' if at else 'x'] * 10)}]\n" for at in range(10))
"""Ten thousand million values in a kilobyte."""

SECTIONS: dict[str, list[object]] = {
    "cluster": [
        "x", 5, [], *({"replicas": count} for count in (0, -1, 1.5, "two", 10**9, NAN, [], True, {"count": 2})),
        *({"replicas": [group]} for group in (
            5, None, {"count": 0}, {"count": -2}, {"count": 10**7}, {"count": True}, {"devise": "l40s"},
            {"workload": {}},
            {"cluster": {"replicas": 2}}, {"simulation": {"seed": 3}}, {"slo": {}}, {"scheduler": {"max_num_seqs": 0}},
            {"device": {"base": "h100_sxm", "hbm_bandwidth": "x-1"}}, {"model": "llama-3.1-70b"},
            {"colocated": {"model": "qwen3-14b"}}, {"compute_split": {"prefill": 0.5, "decode": 0.5}})),
        *({"replicas": 2, "router": router} for router in ("rr", 5, {}, ["random"], "os:system", "nomod:X")),
        {"replicas": 2, "rooter": "random"},
    ],
    "colocated": [
        "x", 5, [], {}, {"model": 5}, {"model": "nope"}, {"model": "qwen3-14b"}, [{"model": "qwen3-14b"}],
        {"model": "qwen3-14b", "device": "l40s"}, {"model": "qwen3-14b", "workload": {}},
        {"model": "qwen3-14b", "workload": WORKLOAD, "cluster": {"replicas": 2}},
        {"model": "qwen3-14b", "workload": WORKLOAD, "bogus": 2},
        {"model": "qwen3-14b", "workload": WORKLOAD, "kv_cache": {"gpu_memory_utilization": 0.9}},
        {"model": "qwen3-14b", "colocated": {}},
    ],
    "compute_split": [
        "x", 5, [], {}, {"prefill": 0.5}, {"decode": 0.5}, {"prefill": 0.5, "decode": 0.5, "x": 1},
        *({"prefill": share, "decode": 0.6} for share in (0.6, 0, -0.1, NAN, INF, "half", True)),
    ],
    "parallelism": [
        "x", 5, [], {"dp": 2}, {"enable_expert_parallel": True}, {"expert_parallel": "maybe"},
        {"expert_parallel_size": 2},
        *({"tensor_parallel_size": count} for count in (0, -2, 3, 10**9, 2.5, NAN, True)),
        *({"pipeline_parallel_size": count} for count in (0, -1, 33, "two")),
        *({"data_parallel_size": count} for count in (0, -1, 2.5, 10**9)),
    ],
    "node": ["x", 5, [], {"gpus": 0}, {"gpus": -1}, {"bogus": 1}, {"name": "dgx"}],
    "price": [
        "x", 5, [], -1, {"plan": "on_demandd"}, {"plan": 5}, {"plan": "owned"}, {"owned": 5}, {"owned": {}},
        {"table": 5},
        {"table": "nope.yaml"}, {"table": "."}, {"usd_per_gpu_hour": -1}, {"usd_per_gpu_hour": NAN}, {"bogus": 1},
    ],
    "simulation": [
        "x", 5, [], {"bogus": 1}, *({"window": window} for window in ([5, 1], [NAN, 5], {"from": 1}, 0, -1, NAN)),
        *({"warmup": warmup} for warmup in (-1, NAN, INF, "long", [])), *({"seed": seed} for seed in (-1, 0.5, True)),
    ],
    "kv_cache": [
        "x", [], {"eviction": "lruu"}, {"eviction": {}}, {"eviction": {"policy": "x"}}, {"block_size": 0}, {"keep": 2},
        *({"tiers": tiers} for tiers in (5, [5], [{}], "x")),
        *({"tiers": [{"kind": "dram", "capacity": size}]} for size in (-1, "1ZB", NAN)),
        {"tiers": [{"kind": "tape"}]}, {"tiers": [{"kind": "dram", "policy": "mru"}]}, {"allocator": "x:Y"},
        {"allocator": "paged2"}, {"kv_cache_memory_bytes": -1}, {"gpu_memory_utilization": 0}, {"swap_space": INF},
    ],
    "slo": [
        "x", 5, [], {"attainment": 1.5}, {"attainment": NAN}, {"classes": 5}, {"classes": {"default": 5}},
        {"classes": {"default": {"ttft_s": -1}}}, {"classes": {"default": {"tpot": 1}}},
        {"classes": {5: {"ttft_s": 1}}},
    ],
    "speculative": ["x", 5, [], {}, {"k": -1}],
}  # fmt: skip

SETS = [
    "", "=", "=5", "a", ".=5", "a.=5", ".a=5", "workload=5", "workload.requests=1e400", "workload.requests=*x",
    "name={a: 1}",
    "workload.requests=&a [*a]", "simulation.seed=[", "simulation.seed=!!int x", "device={}", "device=5", "device=null",
    "device.bogus=5", "model=null", "model={}", "model=~nobody/x", "scheduler.options.aging=5",
    "scheduler.name=os:system",
    "scheduler.name=a:", "workload.input_tokens.kind=zipf", "\x00=1", "a" * 100_000 + "=1", "x." * 5000 + "y=1",
    "workload.requests=" + "9" * 6000, *(f"device.hbm_bandwidth={value}" for value in (
        "x0", "x-1", "xnan", "xinf", "x1e308", "1e300", "1e-300", "nan", "x" + "9" * 400)),
    "device.hbm_capacity=0", "device.hbm_capacity=x1e-9", "device.peak_flops=5", "device.link.bandwidth=x0",
]  # fmt: skip

FILES = {
    "nothing": b"", "null": b"null", "NUL bytes": b"\x00" * 100, "a list": b"- 1\n", "a number": b"5",
    "latin-1": b"\xe9",
    "a bomb": BOMB.encode(), "itself": b"slo: &a [*a]\n", "twice": b"name: a\nname: b\n", "deep": b"a: " + b"[" * 5000,
    "a date": b"name: 2020-99-99\n", "5000 digits": b"a: " + b"9" * 5000, "a list as key": b"? [1]\n: 1\n",
    "an object": b'!!python/object/apply:os.system ["true"]', "UTF-16": SMALL.encode("utf-16"),
}  # fmt: skip

HEAD = "arrival_s,input_tokens,output_tokens\n"
TRACES = {
    "nul.csv": HEAD + "0,\x00,5\n", "binary.csv": bytes(range(256)) * 4,
    "digits.csv": HEAD + "0," + "9" * 5000 + ",5\n",
    "endless.csv": HEAD + "1e400,5,5\n", "int64.csv": HEAD + "0,9223372036854775808,5\n",
    "quote.csv": HEAD + '0,"5,5\n',
    "wide.csv": HEAD + "0,1,1,1,1\n", "narrow.csv": HEAD + "0,1\n", "long.csv": HEAD + "0," + "x" * 300_000 + ",1\n",
    "half.csv": HEAD + "0,5.5,5\n", "list.jsonl": "[1,2]\n", "deep.jsonl": "[" * 100_000 + "\n",
    "deeper.jsonl": '{"a":' * 100_000 + "\n", "cut.jsonl": '{"arrival_s": 0, "input_tok', "null.json": "null",
    "digits.jsonl": '{"arrival_s": 0, "input_tokens": ' + "9" * 5000 + ', "output_tokens": 5}\n',
    "nan.jsonl": '{"arrival_s": NaN, "input_tokens": 5, "output_tokens": 5}\n', "junk.csv.gz": b"\x1f\x8bjunk",
    "cut.csv.gz": gzip.compress((HEAD + "0,5,5\n" * 9000).encode())[:60], "junk.parquet": b"PAR1junkPAR1",
}  # fmt: skip


@contextmanager
def soon() -> Iterator[None]:
    def stop(*_: object) -> None:
        pytest.fail(f"took more than {LIMIT_S} s of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.fixture
def refused(membound):
    """Return a check that a command is refused in one line of bounded length."""

    def check(*words: object) -> None:
        with soon():
            ran = membound(*words)
        assert (ran.code, ran.out) == (2, ""), ran
        assert ran.err.startswith("error: ")
        assert ran.err.count("\n") == 1
        assert len(ran.err) < 2100
        assert "Traceback" not in ran.err
        assert "internal" not in ran.err

    return check


@pytest.mark.parametrize(
    ("section", "value"), [(name, value) for name, values in SECTIONS.items() for value in values]
)
def test_a_section_that_cannot_be_is_refused(refused, small, section, value):
    data = copy.deepcopy(yaml.safe_load(SMALL))
    small.write_text(yaml.safe_dump({**data, section: value}))
    refused("simulate", small)


@pytest.mark.parametrize("text", SETS, ids=lambda text: repr(text[:40]))
def test_an_assignment_that_cannot_be_is_refused(refused, small, text):
    refused("simulate", small, "--set", text)


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "x.yaml"], ["plan", "x.yaml"], ["devices", "x.yaml"],
        ["simulate", "small.yaml", "--device", "x.yaml"], ["simulate", "small.yaml", "--engine", "x.yaml"],
        ["simulate", "small.yaml", "--set", "price.table=x.yaml"],
        ["simulate", "small.yaml", "--set", "kv_cache.tiers=[{kind: x.yaml}]"],
        ["simulate", "small.yaml", "--model", "x.yaml"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_file_that_cannot_be_is_refused_at_every_door(refused, small, tmp_path, what, words):
    (tmp_path / "x.yaml").write_bytes(FILES[what])
    refused(*words)


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_that_cannot_be_is_refused(refused, tmp_path, name):
    content = TRACES[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    refused("trace", "inspect", name)


@pytest.mark.parametrize("words", [["simulate"], ["trace", "inspect"], ["report"]], ids=" ".join)
@pytest.mark.parametrize("name", ["", "/", "x" * 5000, "a\0b", "a\udcff"], ids=ascii)
def test_a_name_that_no_file_has_is_refused(refused, words, name):
    refused(*words, name)


@pytest.mark.parametrize("file", ["summary.json", "provenance.json"])
@pytest.mark.parametrize("text", ["", "[1]", "[" * 100_000, "{"], ids=lambda text: repr(text[:4]))
def test_a_result_that_was_damaged_is_refused(membound, refused, small, file, text, tmp_path):
    membound("simulate", small, "--num-prompts", 3, "--out", "run", "--quiet")
    (tmp_path / "run" / file).write_text(text)
    refused("report", "run")


@pytest.mark.parametrize("text", [SMALL.replace("\n", "\r\n"), "\ufeff" + SMALL], ids=["CRLF", "BOM"])
def test_line_ends_and_byte_order_marks_of_other_systems_are_read(membound, small, text):
    small.write_bytes(text.encode())
    assert membound("simulate", small, "--quiet").code == 0
