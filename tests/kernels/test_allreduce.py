"""All-reduce between two processes: the sum is right, and the slowest rank counts."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from membound.kernels.allreduce import time_allreduce
from membound.kernels.errors import KernelError
from membound.kernels.shape import KernelShape


def of(nbytes: int, ranks: int = 2) -> KernelShape:
    return KernelShape("allreduce", "gloo", "float32", bytes=nbytes, world_size=ranks)


@pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")
def test_two_processes_sum_and_are_timed():
    found = time_allreduce([of(1024), of(1 << 16)], "cpu", 0.0)
    assert len(found) == 2
    for one in found:
        assert one.error < 1e-5
        assert one.timing is not None
        assert one.timing.repeats >= 10
        assert one.timing.seconds > 0.0


def test_group_sizes_are_not_mixed():
    with pytest.raises(KernelError, match="one group size"):
        time_allreduce([of(8, 2), of(8, 4)], "cpu", 0.0)
