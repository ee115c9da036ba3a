"""What a host's own log says against what would have been computed: errors, and the rest that this host keeps."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from .bareengine import EngineLike, engine_name, rules_of
from .capacity import fit_reserve, kv_pool
from .device import DeviceProfile
from .errors import CapacityError
from .lowering import ParallelismLike
from .memorylog import PrintedMemory
from .pool import KVPool, PoolSettings
from .spec import ModelSpec

REST = ("non_torch", "nccl", "context", "graphs")
"""Terms that no formula gives: growth outside torch and CUDA graphs."""


@dataclass(frozen=True, slots=True)
class PrintedFigure:
    """One printed figure beside what is computed without the log.

    Attributes
    ----------
    name : what it is
    unit : ``GiB``, ``blocks``, ``tokens`` or ``requests``
    printed, formula : both, in that unit, sizes in bytes [B]; formula None where it has no such term
    """

    name: str
    unit: str
    printed: float
    formula: float | None

    @property
    def error(self) -> float | None:
        """Signed error of the formula [-]."""
        return self.formula / self.printed - 1 if self.formula is not None and self.printed else None


@dataclass(frozen=True, slots=True)
class HostLog:
    """A log read against the formula.

    Attributes
    ----------
    figures : every printed figure
    rest_bytes : non-torch growth and graphs of this host, fitted from its pool; None where it names none [B]
    rest_formula_bytes : what the constants say of the two [B]
    notes : what stands in the way of either, one line each
    """

    figures: tuple[PrintedFigure, ...]
    rest_bytes: int | None
    rest_formula_bytes: int | None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON; sizes in bytes, errors as fractions."""
        return {
            "figures": [asdict(figure) | {"error": figure.error} for figure in self.figures],
            "rest_bytes": self.rest_bytes,
            "rest_formula_bytes": self.rest_formula_bytes,
            "notes": list(self.notes),
        }


def read_host(
    device: DeviceProfile,
    engine: EngineLike,
    model: ModelSpec,
    printed: PrintedMemory,
    parallelism: ParallelismLike | None = None,
    settings: PoolSettings | None = None,
) -> HostLog:
    """Compare a log with the formula, and fit what this host keeps beside weights, activations and KV.

    Settings that the log names (utilization, block size, the length of a request) go into the formula too:
    they are no predictions.

    Examples
    --------
    >>> from membound.hwmodels.device import load_device
    >>> from membound.hwmodels.engine import load_engine
    >>> from membound.hwmodels.memorylog import parse_log
    >>> from membound.hwmodels.model import load_model
    >>> log = parse_log("Available KV cache memory: 50.48 GiB")
    >>> host = read_host(load_device("h100_sxm"), load_engine("vllm-0.15"), load_model("llama-3.1-8b"), log)
    >>> round(host.rest_bytes / 2**30, 2), round(host.figures[0].error, 3)
    (1.03, 0.011)
    """
    given = settings or PoolSettings()
    known = PrintedMemory(
        gpu_memory_utilization=printed.gpu_memory_utilization,
        block_size=printed.block_size,
        concurrency_length=printed.concurrency_length,
    )
    notes: list[str] = []
    try:
        pool = kv_pool(device, engine, model, parallelism, _free(given, known))
    except CapacityError as error:
        return HostLog(_figures(printed, None, device, engine), None, None, (f"without the log: {error}",))
    rest: int | None = None
    if engine_name(engine.engine) == "vllm" and _names_a_pool(printed):
        try:
            rest = fit_reserve(device, engine, model, printed, parallelism, _free(given, None))
        except CapacityError as error:
            notes.append(str(error))
    constants = pool.term_bytes(*REST) if engine_name(engine.engine) == "vllm" else None
    return HostLog(_figures(printed, pool, device, engine), rest, constants, tuple(notes))


def _free(given: PoolSettings, printed: PrintedMemory | None) -> PoolSettings:
    """Return the settings without a pool that was set: the formula answers for itself."""
    return replace(given, num_gpu_blocks_override=None, kv_cache_memory_bytes=None, printed=printed)


def _names_a_pool(printed: PrintedMemory) -> bool:
    return any(value is not None for value in (printed.kv_bytes, printed.num_gpu_blocks, printed.kv_tokens))


def _figures(
    printed: PrintedMemory, pool: KVPool | None, device: DeviceProfile, engine: EngineLike
) -> tuple[PrintedFigure, ...]:
    def term(*names: str) -> int | None:
        return (pool.term_bytes(*names) or None) if pool else None

    rows: list[tuple[str, str, float | None, float | None]] = [
        ("KV cache", "blocks", printed.num_gpu_blocks, pool and pool.num_gpu_blocks),
        ("KV cache", "tokens", printed.kv_tokens, pool and _tokens(pool, engine)),
        ("KV memory", "GiB", printed.kv_bytes, pool and pool.kv_pool_bytes),
        ("concurrency", "requests", printed.max_concurrency, pool and pool.max_concurrency),
        ("weights", "GiB", printed.weights_bytes, term("weights")),
        ("activations", "GiB", printed.activation_bytes, term("activations")),
        ("non-torch", "GiB", printed.non_torch_bytes, term("non_torch", "nccl", "context")),
        ("graphs, estimated", "GiB", printed.graph_bytes, term("graphs")),
        ("graphs, captured", "GiB", printed.captured_bytes, term("graphs")),
        ("total memory", "GiB", printed.total_bytes, device.usable_bytes),
    ]
    return tuple(
        PrintedFigure(name, unit, value, ours) for name, unit, value, ours in rows if value is not None
    )


def _tokens(pool: KVPool, engine: EngineLike) -> int:
    """Tokens as the engine prints them: to vLLM 0.20, blocks of one group of layers x block size [tokens]."""
    layout = pool.layout
    vllm = engine_name(engine.engine) == "vllm"
    if vllm and rules_of(engine).token_line == "blocks" and layout.block_tokens:
        return pool.num_gpu_blocks // layout.n_groups * layout.block_tokens * layout.context_parallel
    return pool.kv_capacity_tokens
