"""All tests of the kernels need torch; without it they are skipped, with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Read when triton is first imported; its kernels are then run by an interpreter that needs no GPU.
os.environ.setdefault("TRITON_INTERPRET", "1")
torch = pytest.importorskip("torch", reason="the kernels need torch: pip install 'membound[calibrate]'")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
