"""A training step of a model that is served, for contrast: its forward pass by the step model, the rest by convention.

Convention: forward and backward are three forward passes (the backward pass computes the gradients of inputs and of
weights, as many FLOP each; Chowdhery et al., PaLM, 2022, appendix B; nothing is recomputed). HBM bytes are those of
mixed-precision Adam on 16-bit weights (Rajbhandari et al., ZeRO, 2020, section 3): activations are left out, as they
are of steps that serve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .account import StepColumns, account
from .stepmodel import StepModel

PASSES = 3.0
"""Forward passes' worth of FLOP and kernel time."""
STATE_BYTES = 16.0
"""Kept of a parameter: weight and gradient of 2 bytes, fp32 weight, momentum and variance of 4 [B]."""
MOVED_BYTES = 34.0
"""Moved of a parameter in a step: weight read in both passes and written (6), gradient written and read (4), fp32
weight, momentum and variance read and written (24) [B]."""


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One step of training on one rank.

    Attributes
    ----------
    tokens, sequences : in the batch of a rank [tokens], [sequences]
    flop : work by compute dtype [FLOP]
    flop_seconds : that work over the peak of its dtype [s]
    hbm_bytes : necessary bytes by the convention [B]
    seconds : three times the forward kernels, and the optimizer's bytes; never measured [s]
    state_bytes : weights, gradients and optimizer states of the rank [B]
    """

    tokens: int
    sequences: int
    flop: Mapping[str, float]
    flop_seconds: float
    hbm_bytes: float
    seconds: float
    state_bytes: float


def training_step(model: StepModel, sequences: int, length: int) -> TrainingStep:
    """Return a training step on whole sequences.

    Parameters
    ----------
    model : of 16-bit weights; its sampler stands for the loss over the vocabulary
    sequences, length : of the batch of a rank [-], [tokens]
    """
    tokens = sequences * length
    chunks = [(length, 0)] * sequences
    duration = model.step_ns(0, 0, 0, chunks, tokens)
    one = np.ones(1, dtype=np.int64)
    found = account(
        model,
        StepColumns(
            steps=one,
            n_decode=0 * one,
            context_sum=0 * one,
            longest=0 * one,
            sampled=tokens * one,
            prefill_starts=np.array([0, sequences]),
            prefill_new=np.full(sequences, length),
            prefill_cached=np.zeros(sequences, dtype=np.int64),
            duration_ns=duration * one,
        ),
    )
    parameters = model.plan.weight_bytes / model.plan.head.precision.weight_bytes
    # Weights are read and gradients written by the kernels; what the optimizer moves comes after them.
    optimizer = parameters * (MOVED_BYTES - 6.0) / (model.engine.elementwise_eb * model.chip.bandwidth)
    return TrainingStep(
        tokens=tokens,
        sequences=sequences,
        flop={dtype: PASSES * float(np.sum(work)) for dtype, work in found.flop.items()},
        flop_seconds=PASSES * float(np.sum(found.useful_flop_seconds)),
        hbm_bytes=parameters * MOVED_BYTES,
        seconds=PASSES * float(np.sum(found.kernel_busy_s)) + optimizer,
        state_bytes=parameters * STATE_BYTES,
    )
