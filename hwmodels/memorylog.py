"""Read what an engine printed about its memory from a pasted log.

The lines are those of vLLM (V0 and V1), SGLang and TensorRT-LLM; where several ranks print one, the tightest
counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .errors import CapacityError

GIB = 1 << 30
_NUMBER = r"([\d][\d,]*\.?\d*)"


@dataclass(frozen=True, slots=True)
class PrintedMemory:
    """Figures an engine printed; None where it did not.

    Attributes
    ----------
    num_gpu_blocks : blocks of the pool [blocks]
    kv_tokens : tokens of the pool, as the engine counts them [tokens]
    kv_bytes : memory available to KV, or allocated to it [B]
    weights_bytes, activation_bytes, non_torch_bytes, graph_bytes : terms of the sum [B]
    captured_bytes : what CUDA graphs took once captured, which is not what the pool was sized with [B]
    total_bytes : what the driver reports as total [B]
    gpu_memory_utilization : share of it that the engine was given [-]
    max_concurrency, concurrency_length : requests of that length that fit [requests, tokens]
    needed_bytes, needed_length : KV that one request of that length needs, from a refusal [B, tokens]
    estimated_max_model_len : longest request the engine said would fit [tokens]
    block_size : tokens a block, where printed [tokens]
    warnings : what the figures must not be used for
    """

    num_gpu_blocks: int | None = None
    kv_tokens: int | None = None
    kv_bytes: int | None = None
    weights_bytes: int | None = None
    activation_bytes: int | None = None
    non_torch_bytes: int | None = None
    graph_bytes: int | None = None
    captured_bytes: int | None = None
    total_bytes: int | None = None
    gpu_memory_utilization: float | None = None
    max_concurrency: float | None = None
    concurrency_length: int | None = None
    needed_bytes: int | None = None
    needed_length: int | None = None
    estimated_max_model_len: int | None = None
    block_size: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def kv_bytes_per_token(self) -> float | None:
        """KV of one token, from a refusal, which names a length and its bytes; None without one [B]."""
        if self.needed_bytes is None or not self.needed_length:
            return None
        return self.needed_bytes / self.needed_length


@dataclass(frozen=True, slots=True)
class _Pattern:
    """One line of a log: which field each group fills, in which unit, and which rank counts."""

    regex: re.Pattern[str]
    names: tuple[str, ...]
    units: tuple[float, ...]
    among_ranks: Callable[[Iterable[float]], float] = min


def _line(pattern: str, *fields_and_units: tuple[str, float], largest: bool = False) -> _Pattern:
    return _Pattern(
        re.compile(pattern.replace("@", _NUMBER), re.IGNORECASE),
        tuple(name for name, _ in fields_and_units),
        tuple(unit for _, unit in fields_and_units),
        max if largest else min,
    )


_LINES: tuple[_Pattern, ...] = (
    # vLLM, V0
    _line(r"# (?:GPU|CUDA) blocks: @", ("num_gpu_blocks", 1)),
    _line(r"Loading model weights took @ G", ("weights_bytes", GIB), largest=True),
    _line(
        r"total_gpu_memory \(@\s*GiB\) x gpu_memory_utilization \(@\)",
        ("total_bytes", GIB),
        ("gpu_memory_utilization", 1),
    ),
    _line(r"model weights take @\s*GiB", ("weights_bytes", GIB), largest=True),
    _line(r"non_torch_memory takes @\s*GiB", ("non_torch_bytes", GIB), largest=True),
    _line(r"activation peak memory takes @\s*GiB", ("activation_bytes", GIB), largest=True),
    _line(r"reserved for KV Cache is @\s*GiB", ("kv_bytes", GIB)),
    # vLLM, V1
    _line(r"Model loading took @ G", ("weights_bytes", GIB), largest=True),
    _line(r"Available KV cache memory: @ GiB", ("kv_bytes", GIB)),
    _line(r"GPU KV cache size: @ tokens", ("kv_tokens", 1)),
    _line(r"(?<!Overriding )num_gpu_blocks(?: is)?\s*[:=]\s*@", ("num_gpu_blocks", 1)),
    _line(
        r"Maximum concurrency for @ tokens per request: @x", ("concurrency_length", 1), ("max_concurrency", 1)
    ),
    _line(r"Free memory on device[^(]*\([\d.]+/@\s*GiB\)", ("total_bytes", GIB)),
    _line(r"GPU memory utilization (?:is )?\(@,", ("gpu_memory_utilization", 1)),
    _line(r"@ GiB for weights?,", ("weights_bytes", GIB), largest=True),
    _line(r"@ GiB for peak activation", ("activation_bytes", GIB), largest=True),
    _line(r"@ GiB for non-torch memory", ("non_torch_bytes", GIB), largest=True),
    _line(r"Estimated CUDA graph memory: @ GiB", ("graph_bytes", GIB), largest=True),
    _line(r"Graph capturing finished in [\d.]+ secs, took @ GiB", ("captured_bytes", GIB), largest=True),
    _line(
        r"max(?:imum)? seq(?:uence)? len(?:gth)? \(@\), \(?@ GiB KV cache is needed",
        ("needed_length", 1),
        ("needed_bytes", GIB),
    ),
    _line(r"larger than the available KV cache memory \(@ GiB\)", ("kv_bytes", GIB)),
    _line(r"estimated maximum model length is @", ("estimated_max_model_len", 1)),
    # SGLang, which divides by 2^30 and writes GB
    _line(r"Load weight end\..*?\bmem usage=@ GB", ("weights_bytes", GIB), largest=True),
    _line(r"Capture (?:cuda )?graph end\..*?\bmem usage=@ GB", ("captured_bytes", GIB), largest=True),
    _line(r"KV Cache is allocated\..*?#tokens: @", ("kv_tokens", 1)),
    _line(r"max_total_num_tokens=@", ("kv_tokens", 1)),
    # TensorRT-LLM
    _line(
        r"Allocated @ GiB for max tokens in paged KV cache \(@\)", ("kv_bytes", GIB), ("kv_tokens", 1)
    ),
    _line(r"blocks in KV cache primary pool: @", ("num_gpu_blocks", 1)),
    _line(r"Number of tokens per block: @", ("block_size", 1)),
)  # fmt: skip
_HALVES = re.compile(r"K size: ([\d.]+) GB, V size: ([\d.]+) GB")
_WHOLE = {
    "num_gpu_blocks",
    "kv_tokens",
    "concurrency_length",
    "needed_length",
    "estimated_max_model_len",
    "block_size",
}


def parse_log(text: str) -> PrintedMemory:
    """Return what a pasted log says about memory.

    Parameters
    ----------
    text : any part of an engine's start-up log

    Raises
    ------
    CapacityError
        No line that says anything about memory.

    Examples
    --------
    >>> parse_log("# GPU blocks: 1381, # CPU blocks: 819").num_gpu_blocks
    1381
    """
    found: dict[str, float] = {}
    for pattern in _LINES:
        hits = list(pattern.regex.finditer(text))
        for i, (name, unit) in enumerate(zip(pattern.names, pattern.units, strict=True)):
            values = [_number(hit.group(i + 1)) * unit for hit in hits]
            if values and name not in found:
                found[name] = pattern.among_ranks(values)
    halves = [(_number(hit.group(1)) + _number(hit.group(2))) * GIB for hit in _HALVES.finditer(text)]
    if halves:
        found["kv_bytes"] = min(halves)
    if not found:
        raise CapacityError(
            "no line about memory in the log; allowed: 'Available KV cache memory: … GiB', "
            + "'# GPU blocks: …', 'Model loading took … GiB', 'GPU KV cache size: … tokens', "
            + "'Maximum concurrency for … tokens per request: …x'"
        )
    values = {
        name: round(value) if name in _WHOLE or name.endswith("bytes") else value
        for name, value in found.items()
    }
    return PrintedMemory(**values, warnings=_warnings(values))  # pyright: ignore[reportArgumentType]


def _number(text: str) -> float:
    return float(text.replace(",", "").rstrip("."))


def _warnings(values: dict[str, float]) -> tuple[str, ...]:
    """Say where two printed figures must not be divided by each other."""
    tokens, length, times = (values.get(k) for k in ("kv_tokens", "concurrency_length", "max_concurrency"))
    notes: list[str] = []
    if tokens and length and times and abs(tokens / (length * times) - 1) > 0.02:
        notes.append(
            f"{tokens:,.0f} tokens is not {times:g} x {length:,.0f}: windows or states make a request's KV "
            + "fixed + slope x length, so bytes / tokens is no KV size per token"
        )
    elif values.get("kv_bytes") and tokens and not values.get("num_gpu_blocks"):
        notes.append(
            "bytes / tokens is a KV size per token only where every layer keeps every token; from vLLM 0.21 "
            + "on the token line is concurrency x max_model_len"
        )
    return tuple(notes)
