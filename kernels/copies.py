"""Copies: between host and device, within a device, and of cache blocks through a table."""

from __future__ import annotations

import torch

from .call import Call, Kernel
from .shape import KernelShape
from .source import Source

_PATTERN = 1 << 20
BLOCK_BYTES = 16 * 8 * 128 * 2
"""One layer's keys of a cache block: 16 tokens, 8 heads of 128 in 16 bit [B]."""


def _host(nbytes: int) -> torch.Tensor:
    """Return pinned memory with a random pattern, repeated: drawing a GiB of numbers takes seconds."""
    out = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    pattern = torch.randint(0, 256, (min(nbytes, _PATTERN),), dtype=torch.uint8)
    whole = nbytes // len(pattern) * len(pattern)
    out[:whole].view(-1, len(pattern)).copy_(pattern)
    out[whole:] = pattern[: nbytes - whole]
    return out


def _to_device(shape: KernelShape, source: Source) -> Call:
    host, out = _host(shape.bytes), source.empty((shape.bytes,), torch.uint8)
    return Call(lambda: out.copy_(host, non_blocking=True), lambda: host.to(out.device).float())


def _to_host(shape: KernelShape, source: Source) -> Call:
    x, host = source.numbers((shape.bytes,), torch.uint8), _host(shape.bytes)

    def run() -> torch.Tensor:
        return host.copy_(x, non_blocking=True)

    def reference() -> torch.Tensor:
        torch.cuda.synchronize(x.device)
        return x.cpu().float()

    return Call(run, reference)


def _within(shape: KernelShape, source: Source) -> Call:
    x, out = source.numbers((shape.bytes,), torch.uint8), source.empty((shape.bytes,), torch.uint8)
    return Call(lambda: out.copy_(x), lambda: x.float())


def _blocks(shape: KernelShape, source: Source) -> Call:
    """Copy the cache blocks that a shuffled table names, one after the other."""
    n = max(shape.bytes // BLOCK_BYTES, 1)
    cache = source.numbers((n, BLOCK_BYTES), torch.uint8)
    out = source.empty((n, BLOCK_BYTES), torch.uint8)
    table = source.permutation(n)
    return Call(lambda: torch.index_select(cache, 0, table, out=out), lambda: cache[table].float())


def _no_host_link(device: torch.device, dtype: str) -> str | None:
    return "the CPU is the host: nothing to copy to or from" if device.type == "cpu" else None


TO_DEVICE = Kernel("copy_h2d", "torch_pinned", ("uint8",), _to_device, _no_host_link)
TO_HOST = Kernel("copy_d2h", "torch_pinned", ("uint8",), _to_host, _no_host_link)
WITHIN = Kernel("copy_d2d", "torch_copy", ("uint8",), _within)
BLOCKS = Kernel("copy_blocks", "torch_index", ("uint8",), _blocks)
