"""Where a kernel's inputs come from: fresh random numbers, or views that walk through a pool larger than the caches.

A pool makes many sets of inputs at the price of one: its values repeat, its addresses do not, and a cache goes by
address.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_SEED_ELEMENTS = 1 << 20
_ALIGNMENT = 256


class Source:
    """Fresh random inputs on a device.

    Attributes
    ----------
    taken : bytes handed out since it was last set to 0 [B]
    """

    def __init__(self, device: torch.device, seed: int | None = None) -> None:
        self.device = device
        self.taken = 0
        self._generator = torch.Generator(device)
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    def numbers(self, size: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return standard normal numbers; for ``int8`` and ``uint8``, uniform ones over their whole range."""
        found = self._draw(size, dtype)
        self.taken += found.nbytes
        return found

    def empty(self, size: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return memory to write to."""
        found = torch.empty(tuple(size), dtype=dtype, device=self.device)
        self.taken += found.nbytes
        return found

    def permutation(self, n: int) -> Tensor:
        """Return 0 .. n-1 in random order, int32."""
        return torch.randperm(n, generator=self._generator, device=self.device).to(torch.int32)

    def below(self, high: int, size: Sequence[int]) -> Tensor:
        """Return whole numbers in 0 .. high-1, int64."""
        return torch.randint(0, high, tuple(size), generator=self._generator, device=self.device)

    def _draw(self, size: Sequence[int], dtype: torch.dtype) -> Tensor:
        if dtype in (torch.int8, torch.uint8):
            low, high = (-128, 128) if dtype == torch.int8 else (0, 256)
            return torch.randint(
                low, high, tuple(size), generator=self._generator, device=self.device, dtype=dtype
            )
        return torch.randn(tuple(size), generator=self._generator, device=self.device).to(dtype)


class Pool(Source):
    """Inputs as views of one buffer a dtype, each beginning where the one before ended.

    Parameters
    ----------
    device : where the buffers are
    nbytes : size of each buffer [B]; larger than the caches, so that a second round finds nothing in them
    seed : of the random numbers; None: from the system
    """

    def __init__(self, device: torch.device, nbytes: int, seed: int | None = None) -> None:
        super().__init__(device, seed)
        self._nbytes = nbytes
        self._buffers: dict[torch.dtype, Tensor] = {}
        self._next: dict[torch.dtype, int] = {}
        self._used: dict[torch.dtype, int] = {}

    def begin(self) -> None:
        """Begin a set of inputs: none of its tensors will share memory with another of them."""
        self.taken = 0
        self._used = {}

    def _draw(self, size: Sequence[int], dtype: torch.dtype) -> Tensor:
        wanted = 1
        for length in size:
            wanted *= length
        buffer = self._buffer(dtype, wanted)
        start, used = self._next.get(dtype, 0), self._used.get(dtype, 0)
        rest = buffer.numel() - start
        if wanted > rest:
            start, used = 0, used + rest
        if used + wanted > buffer.numel() and used > rest:
            # It would meet the set's own beginning: go on in a larger buffer; the old one lives on in its views.
            buffer = self._buffer(dtype, 2 * (buffer.numel() + wanted))
            start, used = 0, 0
        step = _ALIGNMENT // buffer.element_size()
        taken = -(-wanted // step) * step
        self._next[dtype], self._used[dtype] = min(start + taken, buffer.numel()), used + taken
        return buffer[start : start + wanted].view(tuple(size))

    def _buffer(self, dtype: torch.dtype, wanted: int) -> Tensor:
        held = self._buffers.get(dtype)
        if held is not None and held.numel() >= wanted:
            return held
        itemsize = torch.empty(0, dtype=dtype).element_size()
        elements = max(self._nbytes // itemsize, wanted)
        pattern = super()._draw((min(_SEED_ELEMENTS, elements),), dtype)
        # float8 has no repeat: tile the bytes.
        tiled = pattern.view(torch.uint8).repeat(-(-elements // pattern.numel())).view(dtype)
        self._buffers[dtype], self._next[dtype], self._used[dtype] = tiled, 0, 0
        return tiled
