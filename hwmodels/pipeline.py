"""How long a step takes on each stage of a pipeline, whose groups of GPUs hold some layers each.

Steps follow one another through the stages like cars through a car wash: a step enters a stage when the stage is free
and the step has left the stage before. Bubbles, the time in which a stage has nothing to do, are the engine's to find.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from .collectives import ALONE, Collectives
from .lowering import ModelPlan, ParallelismLike, lower_model
from .precision import QuantizationLike
from .routing import Routing
from .spec import ModelSpec
from .stages import stage_layers
from .stepmodel import StepModel
from .steptypes import Phase, StepDevice, StepEngine
from .timing.hop import Network


def lower_stages(
    model: ModelSpec,
    parallelism: ParallelismLike,
    quantization: QuantizationLike,
    dtypes: Collection[str] | None = None,
) -> tuple[ModelPlan, ...]:
    """Return what one rank of each pipeline stage does with its layers, dealt out as vLLM deals them.

    The first stage has the embedding, the last one final norm, head and sampler. What goes on to the next stage
    are hidden states and residual, as vLLM sends them (``IntermediateTensors``).

    Parameters
    ----------
    model, parallelism, quantization, dtypes : as in ``lower_model``

    Raises
    ------
    CapacityError
        Fewer layers than stages, or what ``lower_model`` raises.
    """
    whole = lower_model(model, parallelism, quantization, dtypes)
    held = stage_layers(model, parallelism.pipeline_parallel_size)
    last = len(held) - 1
    return tuple(
        replace(
            whole,
            layers=tuple(
                replace(layer, count=indices.count(group))
                for group, layer in enumerate(whole.layers)
                if group in indices
            ),
            outside=whole.outside if stage == 0 else (),
            head=whole.head if stage == last else replace(whole.head, n=0),
            embedding_bytes_per_token=whole.embedding_bytes_per_token if stage == 0 else 0.0,
            sent_bytes_per_token=0.0 if stage == last else 2.0 * whole.message_bytes_per_token,
        )
        for stage, indices in enumerate(held)
    )


@final
class PipelineStepModel:
    """One model on the stages of a pipeline, each a tensor-parallel group of its own.

    Parameters
    ----------
    device, engine, model, parallelism, quantization, sampling, routing, attention, observation, collectives : as in
        ``StepModel``
    networks : what each stage but the last has between itself and the next; None: the link inside the machine

    Attributes
    ----------
    stages : step models of the stages
    plan : the first stage's plan
    """

    def __init__(
        self,
        device: StepDevice,
        engine: StepEngine,
        model: ModelSpec,
        parallelism: ParallelismLike,
        quantization: QuantizationLike,
        *,
        sampling: Literal["greedy", "top_p_top_k"] | str = "greedy",
        routing: Routing | None = None,
        attention: Literal["flash", "naive"] | str = "flash",
        networks: Sequence[Network | None] = (),
        observation: int = 0,
        collectives: Collectives = ALONE,
    ) -> None:
        plans = lower_stages(model, parallelism, quantization, device.peak_flops)
        behind = [*networks, *[None] * (len(plans) - len(networks))]
        self.device, self.engine, self.model = device, engine, model
        self.stages = tuple(
            StepModel(
                device,
                engine,
                model,
                parallelism,
                quantization,
                sampling=sampling,
                routing=routing,
                attention=attention,
                plan=plan,
                network=network,
                observation=observation,
                collectives=collectives,
            )
            for plan, network in zip(plans, behind, strict=True)
        )
        self.plan = plans[0]
        self.queries = 1
        self.needs_contexts = any(stage.needs_contexts for stage in self.stages)

    def stages_ns(
        self,
        n_decode: int,
        context_sum: int,
        longest: int,
        prefill: Sequence[tuple[int, int]],
        sampled: int,
        contexts: Sequence[int] | None = None,
        selecting: tuple[int, int] | None = None,
    ) -> list[int]:
        """Return the time of one step on every stage, sending on included [ns]; parameters as in ``step_ns``.

        Every stage has a host of its own that its device waits for.
        """
        last = len(self.stages) - 1
        return [
            stage.step_ns(
                n_decode, context_sum, longest, prefill, sampled if number == last else 0, contexts, selecting
            )
            for number, stage in enumerate(self.stages)
        ]

    def step_ns(
        self,
        n_decode: int,
        context_sum: int,
        longest: int,
        prefill: Sequence[tuple[int, int]],
        sampled: int,
        contexts: Sequence[int] | None = None,
        selecting: tuple[int, int] | None = None,
    ) -> int:
        """Return how long one step takes from the first stage to the last, alone [ns].

        Parameters are those of ``StepModel.step_ns``.
        """
        return sum(self.stages_ns(n_decode, context_sum, longest, prefill, sampled, contexts, selecting))

    def decode_run_ns(
        self, n_decode: int, context_sum: int, longest: int, steps: int, contexts: Sequence[int] | None = None
    ) -> NDArray[np.int64]:
        """Return the durations of consecutive decode steps, each alone, as ``StepModel.decode_run_ns`` [ns]."""
        found = [
            self.step_ns(
                n_decode,
                context_sum + n_decode * step,
                longest + step,
                (),
                n_decode,
                None if contexts is None else [context + step for context in contexts],
            )
            for step in range(steps)
        ]
        return np.array(found, dtype=np.int64)

    def phases(
        self,
        n_decode: int,
        context_sum: int,
        longest: int,
        prefill: Sequence[tuple[int, int]],
        sampled: int,
        contexts: Sequence[int] | None = None,
        selecting: tuple[int, int] | None = None,
    ) -> tuple[Phase, ...]:
        """Return the phases of a step, stage by stage; parameters as in ``StepModel.step_ns``."""
        last = len(self.stages) - 1
        return tuple(
            phase
            for number, stage in enumerate(self.stages)
            for phase in stage.phases(
                n_decode, context_sum, longest, prefill, sampled if number == last else 0, contexts, selecting
            )
        )
