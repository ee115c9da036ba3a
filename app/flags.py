"""Options that set one leaf of a scenario, spelled as in vLLM, and the scenario they make."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..hwmodels.errors import MemboundError

if TYPE_CHECKING:
    from ..sim.scenario import Assignment, Scenario


EVERYBODY = 10**9
"""Users of a closed loop that never waits: every request of the load arrives at once."""


class UsageError(MemboundError):
    """Options that contradict each other, or lack one another."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One option.

    Attributes
    ----------
    option : as typed (``--max-num-seqs``)
    leaf : scenario leaf it sets; empty for those that set several
    help : its line in ``--help``
    panel : heading it stands under there
    metavar : what its value is called there
    short : a shorter spelling
    on_off : takes no value, but has a ``--no-`` form
    text : its value is taken as it stands, not as YAML
    complete : yields its values, for the shell
    """

    option: str
    leaf: str
    help: str
    panel: str
    metavar: str = "N"
    short: str = ""
    on_off: bool = False
    text: bool = False
    complete: Callable[[], list[str]] | None = None

    @property
    def name(self) -> str:
        """The Python name of its value."""
        return self.option.removeprefix("--").replace("-", "_")

    def parameter(self) -> inspect.Parameter:
        """Return the parameter that typer makes the option from."""
        spellings = [f"{self.option}/--no-{self.option[2:]}"] if self.on_off else [self.option]
        names = spellings + ([self.short] if self.short else [])
        option: Any = typer.Option(
            *names,
            help=self.help,
            rich_help_panel=self.panel,
            show_default=False,
            metavar=None if self.on_off else self.metavar,
            autocompletion=self.complete,
        )
        kind: Any = bool | None if self.on_off else str | None
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
        )


def complete_devices() -> list[str]:
    """List the ids of the devices, for the shell."""
    from ..hwmodels.device import list_devices

    return list_devices()


def complete_models() -> list[str]:
    """List the ids of the models, for the shell."""
    from ..hwmodels.model import list_models

    return list_models()


def complete_engines() -> list[str]:
    """List the ids of the engines, for the shell."""
    from ..hwmodels.engine import list_engines

    return list_engines()


WHAT, LOAD, BATCH, MEMORY = "What serves", "Load", "Scheduler", "Memory"

SERVING = (
    Flag("--device", "device", "GPU: id, alias, path, or {base: h100_sxm, hbm_bandwidth: x1.5}.", WHAT,
         "DEVICE", complete=complete_devices),
    Flag("--model", "model", "Model: id, Hugging Face name, or the path of a config.json.", WHAT, "MODEL",
         text=True, complete=complete_models),
    Flag("--engine", "engine", "Engine version: id or path.", WHAT, "ENGINE", text=True,
         complete=complete_engines),
    Flag("--tensor-parallel-size", "parallelism.tensor_parallel_size", "GPUs that share every layer.", WHAT,
         short="-tp"),
    Flag("--pipeline-parallel-size", "parallelism.pipeline_parallel_size",
         "Groups of layers, each on GPUs of its own.", WHAT, short="-pp"),
    Flag("--quantization", "quantization.weights", "Weights: bf16, fp8, w8a16, w4a16, nvfp4, …", WHAT,
         "FORMAT", short="-q"),
    Flag("--kv-cache-dtype", "quantization.kv_cache", "KV cache: auto, bf16, fp8, …", WHAT, "FORMAT"),
    Flag("--max-num-seqs", "scheduler.max_num_seqs", "Most requests in a batch.", BATCH),
    Flag("--max-num-batched-tokens", "scheduler.max_num_batched_tokens", "Most tokens in a step.", BATCH),
    Flag("--max-model-len", "kv_cache.max_model_len", "Longest prompt plus answer.", MEMORY),
    Flag("--gpu-memory-utilization", "kv_cache.gpu_memory_utilization",
         "Share of the device's memory the engine may fill.", MEMORY, "SHARE"),
    Flag("--block-size", "kv_cache.block_size", "Tokens in a KV block.", MEMORY),
    Flag("--num-gpu-blocks-override", "kv_cache.num_gpu_blocks_override",
         "This many KV blocks instead of what fits.", MEMORY),
    Flag("--kv-cache-memory-bytes", "kv_cache.kv_cache_memory_bytes",
         "This much memory for KV instead of what is left.", MEMORY, "SIZE"),
)  # fmt: skip
"""What the size of a KV pool depends on."""

RUNNING = (
    Flag("--enable-prefix-caching", "kv_cache.enable_prefix_caching", "Share blocks of equal content.",
         MEMORY, on_off=True),
    Flag("--enable-chunked-prefill", "scheduler.enable_chunked_prefill",
         "Compute long prompts in pieces, beside others' decodes.", BATCH, on_off=True),
    Flag("--async-scheduling", "scheduler.async_scheduling", "Compose a step while the one before it runs.",
         BATCH, on_off=True),
    Flag("--scheduling-policy", "scheduler.scheduling_policy", "Order of the waiting line: fcfs or priority.",
         BATCH, "NAME"),
    Flag("--long-prefill-token-threshold", "scheduler.long_prefill_token_threshold",
         "Most tokens of one prompt in a step.", BATCH),
    Flag("--scheduler", "scheduler.name",
         "Scheduler: vllm_v1, vllm_v0, prefill_first, sarathi, orca, static, sjf, srpt, priority, vtc, deadline, or "
         "module:Class.",
         BATCH, "NAME"),
    Flag("--trace", "workload.trace.path", "Replay this file of requests.", LOAD, "FILE", text=True),
    Flag("--request-rate", "", "Mean arrivals per second (Poisson unless the scenario says otherwise); "
         "inf: all at once.", LOAD, "RATE"),
    Flag("--max-concurrency", "", "This many users instead, each waiting for an answer before asking; beside a rate: "
         "most in flight.", LOAD),
    Flag("--num-prompts", "", "How many requests: drawn, or of the trace.", LOAD),
    Flag("--isl", "workload.input_tokens", "Input sequence length: tokens of every prompt.", LOAD, "TOKENS"),
    Flag("--osl", "workload.output_tokens", "Output sequence length: tokens of every answer.", LOAD,
         "TOKENS"),
    Flag("--seed", "simulation.seed", "Seed of all random draws.", LOAD),
)  # fmt: skip
"""What only a run depends on."""

ALL = SERVING + RUNNING


def with_flags(*flags: Flag) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options; it gets those that were used as ``given``, option name to value."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.name != "given"
        ]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            taken = {flag.option: values.pop(flag.name) for flag in flags}
            command(**values, given={option: value for option, value in taken.items() if value is not None})

        made: Any = run
        made.__signature__ = inspect.Signature([*own, *(flag.parameter() for flag in flags)])
        made.__annotations__ = {}
        del made.__wrapped__
        return run

    return decorate


def scenario_of(path: Path | None, given: Mapping[str, Any], sets: Sequence[str], verb: str) -> Scenario:
    """Return the scenario of a file, or of the template where there is none, with options and ``--set``.

    Parameters
    ----------
    path : the file
    given : options used, by name
    sets : arguments of ``--set``; they win over the options
    verb : the command, for errors

    Raises
    ------
    MemboundError
        One line: a file that cannot be read, an option that is out of range, …
    """
    from ..sim.scenario import parse_scenario, read_scenario
    from ..sim.scenario.errors import Where

    data, where = read_scenario(path) if path is not None else (template(), Where())
    if path is None:
        _check_named(given, sets, verb)
    return parse_scenario(data, [*_assignments(given, data), *sets], where)


def template() -> dict[str, Any]:
    """Return the scenario of ``scenario init`` without what a user must name."""
    import yaml

    from ..sim.scenario import TEMPLATE

    data: dict[str, Any] = yaml.safe_load(TEMPLATE)
    return {key: value for key, value in data.items() if key not in ("name", "device", "model")}


def _check_named(given: Mapping[str, Any], sets: Sequence[str], verb: str) -> None:
    named = {text.partition("=")[0].partition(".")[0].strip() for text in sets}
    missing = [
        option for option in ("--device", "--model") if option not in given and option[2:] not in named
    ]
    if missing:
        raise UsageError(
            f"{verb} needs a scenario file, or --device and --model; missing: {' and '.join(missing)}; "
            f"such as membound {verb} --device h100_sxm --model llama-3.1-8b"
        )


def _assignments(given: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[Assignment]:
    """Yield the leaves that options set."""
    from ..sim.scenario import Assignment

    for flag in ALL:
        if flag.leaf and flag.option in given:
            value = given[flag.option]
            yield Assignment(
                flag.leaf, value if flag.text else _yaml(flag.option, value), _shown(flag, value)
            )
    yield from (Assignment(*parts) for parts in _load(given, data))


def _shown(flag: Flag, value: object) -> str:
    if flag.on_off:
        return flag.option if value else f"--no-{flag.option[2:]}"
    return f"{flag.option} {value}"


def _yaml(option: str, value: object) -> object:
    """Read a value as YAML, as ``--set`` does; flags without a value pass through."""
    import yaml

    from ..hwmodels.plainyaml import plain_yaml

    if not isinstance(value, str):
        return value
    try:
        return plain_yaml(value)
    except yaml.YAMLError:
        raise UsageError(f"{option}: {value!r} is not a YAML value") from None


_ALL_AT_ONCE = ("inf", "infinity", ".inf")


def _load(given: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[tuple[str, object, str]]:
    """Yield leaf, value and spelling of the options whose meaning depends on the load they change."""
    workload: Any = data.get("workload")
    workload = workload if isinstance(workload, dict) else {}
    rate, users, prompts = (
        given.get(f"--{name}") for name in ("request-rate", "max-concurrency", "num-prompts")
    )
    trace = "--trace" in given or bool(workload.get("trace"))
    if rate is not None:
        yield _arrivals(rate, workload, prompts)
    if users is not None:
        most, shown = _yaml("--max-concurrency", users), f"--max-concurrency {users}"
        if rate is not None and rate.strip().lower() not in _ALL_AT_ONCE:
            yield "workload.max_concurrency", most, shown
        else:
            yield "workload.arrivals", {"kind": "closed_loop", "concurrency": most}, shown
    if prompts is not None:
        leaf = "workload.trace.limit" if trace else "workload.requests"
        yield leaf, _yaml("--num-prompts", prompts), f"--num-prompts {prompts}"


def _arrivals(rate: str, workload: Mapping[str, Any], prompts: str | None) -> tuple[str, object, str]:
    """Return the assignment of ``--request-rate``: the rate of the scenario's own process, or Poisson."""
    shown = f"--request-rate {rate}"
    if rate.strip().lower() in _ALL_AT_ONCE:
        everybody = prompts or workload.get("requests") or EVERYBODY
        closed = {"kind": "closed_loop", "concurrency": _yaml("--num-prompts", everybody)}
        return "workload.arrivals", closed, shown
    value = _number(rate)
    arrivals: Any = workload.get("arrivals")
    if isinstance(arrivals, dict) and "rate_per_s" in arrivals:
        return "workload.arrivals.rate_per_s", value, shown
    return "workload.arrivals", {"kind": "poisson", "rate_per_s": value}, shown


def _number(rate: str) -> float:
    try:
        value = float(rate)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise UsageError(f"--request-rate {rate}: not a rate; allowed: a number above 0 [requests/s], or inf")
    return value
