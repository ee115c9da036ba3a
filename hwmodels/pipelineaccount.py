"""Where the time of steps went that pass the stages of a pipeline, averaged over the stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from .account import Rows, StepAccount, StepColumns, step_times, summed_up
from .pipeline import PipelineStepModel
from .stepmodel import NANO, StepModel
from .timing.form import Array


def account_stages(model: PipelineStepModel, columns: StepColumns) -> StepAccount:
    """Attribute the time that steps take on the stages, and count their work, of one GPU on average.

    Parameters
    ----------
    model : the stages
    columns : rows of steps; their durations are not looked at

    Returns
    -------
    The account of an average stage; a row of ``causes_ns`` sums to the mean time that a stage works at the step
    """
    rows = Rows.of(columns)
    last = model.stages[-1]
    return _mean([_stage(stage, columns, rows, last=stage is last) for stage in model.stages])


def _stage(stage: StepModel, columns: StepColumns, rows: Rows, *, last: bool) -> StepAccount:
    """Return the account of one stage; the rows that are sampled reach the last one alone."""
    here = columns if last else replace(columns, sampled=np.zeros_like(columns.sampled))
    time, host, seen = step_times(stage, here, rows)
    own_ns = np.rint((np.asarray(time.seconds) + host) * NANO).astype(np.int64)
    return summed_up(stage, replace(here, duration_ns=own_ns), rows, time, host, seen)


def _mean(found: Sequence[StepAccount]) -> StepAccount:
    """Return the mean over stages; of nanoseconds, the remainder is left out (less than one a cause)."""
    count = len(found)

    def mean(of: Callable[[StepAccount], Array]) -> Array:
        return sum((of(account) for account in found[1:]), of(found[0])) / count

    dtypes = dict.fromkeys(dtype for account in found for dtype in account.flop)
    nothing = np.zeros(len(found[0].kernel_busy_s))
    return StepAccount(
        causes_ns=sum((account.causes_ns for account in found[1:]), found[0].causes_ns) // count,
        flop={dtype: mean(lambda account, d=dtype: account.flop.get(d, nothing)) for dtype in dtypes},
        useful_flop_seconds=mean(lambda account: account.useful_flop_seconds),
        weight_bytes=mean(lambda account: account.weight_bytes),
        kv_bytes=mean(lambda account: account.kv_bytes),
        kernel_busy_s=mean(lambda account: account.kernel_busy_s),
        sm_active_s=mean(lambda account: account.sm_active_s),
        tensor_active_s=mean(lambda account: account.tensor_active_s),
        dram_active_s=mean(lambda account: account.dram_active_s),
    )
