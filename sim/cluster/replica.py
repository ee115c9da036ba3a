"""One replica: an engine with all it is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ...hwmodels.pipeline import PipelineStepModel
from ...hwmodels.power import power_model
from ..books.recorder import Recorder
from ..building import (
    LaneLog,
    kept_step_model,
    make_accountant,
    make_allocator,
    make_scheduler,
    selection_of,
    size_pool,
    speculation_of,
    step_model,
)
from ..device.resources import SharedDevice
from ..engine.engine import Engine
from ..engine.pipeline import Pipeline
from ..tiers.offload import mover_of

if TYPE_CHECKING:
    from ...hwmodels.steptypes import StepDevice
    from ..books.accounting import AnyStepModel, StepAccountant
    from ..clock import Clock
    from ..engine.flight import StepTimer
    from ..engine.request import Request
    from ..scenario.resolve import ResolvedScenario


class ReplicaKind:
    """What replicas of one kind have in common: the scenario of one of them, its sized pool and its step model.

    Parameters
    ----------
    resolved : what one replica is
    device : what times its steps, if it is not the scenario's device (draws)
    name : what its replicas are called in results

    Attributes
    ----------
    lanes : what times its steps, with the kernel families asked of it; of this run alone, as others share the model
    """

    def __init__(self, resolved: ResolvedScenario, device: StepDevice | None = None, name: str = "") -> None:
        self.resolved = resolved
        self.name = name
        self.pool = size_pool(resolved)
        self.model: AnyStepModel = (
            kept_step_model(resolved)
            if device is None
            else step_model(resolved, cast("StepDevice", LaneLog(device)))
        )
        self.lanes = cast("LaneLog", self.model.device).fork()
        self.power = power_model(resolved.device)

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        parallel = self.resolved.scenario.parallelism
        return parallel.tensor_parallel_size * parallel.pipeline_parallel_size


class Replica:
    """An engine, its memory and its books.

    Parameters
    ----------
    kind : what it is
    keep_steps : keep per-step columns for the result directory
    accountant : attributes its steps; None: as every run has it
    moves : requests move from it to others: no request's time by cause is kept, which spans several books
    """

    def __init__(
        self,
        kind: ReplicaKind,
        *,
        keep_steps: bool = False,
        accountant: StepAccountant | None = None,
        moves: bool = False,
    ) -> None:
        self.kind = kind
        self.allocator = make_allocator(kind.resolved, kind.pool)
        self.scheduler = make_scheduler(kind.resolved, kind.model)
        self.accountant = accountant or make_accountant(kind.model, keep_steps=keep_steps, power=kind.power)
        self.recorder = Recorder(self.accountant, keep_steps=keep_steps)
        if moves:
            self.recorder.attribution = None
        self.rules = speculation_of(kind.resolved)

    @property
    def block_size(self) -> int | None:
        """Tokens of the blocks that prefixes are shared in, None if they are not [tokens]."""
        return self.allocator.block_size if self.kind.resolved.kv_cache.enable_prefix_caching else None

    def start(
        self,
        env: Clock,
        on_finish: Callable[[Request], None],
        *,
        among_others: bool = False,
        device: SharedDevice | None = None,
        kind: type[Engine] = Engine,
    ) -> Engine:
        """Put its engine on a clock; see `Engine`.

        By kernels its steps are work on a device, even if nobody else uses it; KV transfers
        bring their own, and stages of a pipeline meet nobody.
        """
        resolved, model = self.kind.resolved, self.kind.model
        mover = mover_of(self.allocator)
        pipeline = Pipeline(model) if isinstance(model, PipelineStepModel) else None
        by_kernel = resolved.scenario.simulation.fidelity == "kernel"
        if device is None and by_kernel and mover is None and pipeline is None:
            device = SharedDevice(env)
        self.engine = kind(
            env,
            self.scheduler,
            self.allocator,
            cast("StepTimer", model),
            self.recorder,
            max_model_len=resolved.kv_cache.max_model_len,
            async_scheduling=resolved.scheduler.async_scheduling and self.scheduler.supports_async,
            fast_forward=resolved.scenario.simulation.fast_forward,
            on_finish=on_finish,
            device=device,
            mover=mover,
            speculation=self.rules,
            pipeline=pipeline,
            selection=selection_of(self.kind.resolved),
            among_others=among_others,
        )
        return self.engine
