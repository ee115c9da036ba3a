"""The simulator against a real engine on the device at hand: calibrate, predict, serve, compare.

Kernels are timed first, then steps of the reference engine under loads that nobody is judged on. From these alone the
simulator predicts a Poisson and a closed-loop load, which the reference engine serves several times. Neighbours change
the speed of a machine within seconds, so that the steps that are fitted and the served loads take turns; what the steps
before the first load would have predicted is told beside it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from ..kernels.errors import require_torch
from ..kernels.scheduled import Scheduled
from ..sim.run import make_allocator, make_scheduler, simulate, size_pool
from ..sim.scenario import Scenario
from ..sim.scenario.resolve import resolve
from .livekernels import timed_device
from .liveloads import BLOCK, SETUPS, LiveFiles, LiveSetup, scenario_of, sized, write_files
from .livereport import LiveReport, LoadFigures, LoadReport, figures_of
from .livesteps import fit_steps, live_engine
from .realclock import RealClock
from .reference_engine import ReferenceEngine, ServedStep

if TYPE_CHECKING:
    from ..kernels.backend import TorchBackend
    from ..kernels.decoder import Decoder

KERNELS_SHARE: Final = 0.16
"""Part of the budget for timing kernels."""
FIT_TURNS: Final = 2
"""Loads that steps are fitted to have so many requests more than users."""
LOAD: Final = 0.4
"""Poisson arrivals come at this share of the rate that the closed loop reaches."""
POISSON_LENGTH: Final = 2.5
"""The Poisson load lasts so many times as long as the closed loop: it has fewer requests to average over."""
LONGEST_LOAD_SHARE: Final = 0.05
"""A closed loop takes at most this part of the budget, once: the turns are to be shorter than the machine's moods."""
_FEWEST_REQUESTS: Final = 24
_SLACK: Final = 0.88
_WARM_SIZES: Final = 48
"""Steps of so many sizes are run before any is timed: libraries prepare a kernel when they first see its shape."""


def run_live(
    device: str = "cpu",
    budget_s: float = 120.0,
    *,
    folder: Path | None = None,
    repeats: int = 3,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> LiveReport:
    """Calibrate a device, predict two loads on it, serve them for real, and compare.

    Parameters
    ----------
    device : ``cpu`` (one thread, told by the time that the process computes), or ``cuda:0`` (wall time)
    budget_s : time for all of it [s]
    folder : where timings, profiles and scenarios go; default: nowhere that stays
    repeats : how often each load is served
    seed : of shapes, arrivals, lengths and weights
    say : takes a line of progress now and then

    Raises
    ------
    KernelError : torch is not installed, or no such device here
    CalibrationError : the budget is too small to fit anything
    """
    require_torch()
    from ..kernels.backend import TorchBackend

    started = time.perf_counter()
    backend = TorchBackend(device, seed)
    try:
        with tempfile.TemporaryDirectory() as passing:
            place = folder or Path(passing)
            place.mkdir(parents=True, exist_ok=True)
            return _Live(backend, budget_s, started, place, seed, say).go(repeats)
    finally:
        backend.close()


class _Live:
    """One run, from kernels to the comparison."""

    def __init__(
        self,
        backend: TorchBackend,
        budget_s: float,
        started: float,
        folder: Path,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self.backend, self.budget_s, self.started = backend, budget_s, started
        self.folder, self.seed, self.say = folder, seed, say
        self.kind = backend.facts().kind
        self.clock = RealClock(cpu=self.kind == "cpu")
        self.round_wall_s = 0.0

    @property
    def left_s(self) -> float:
        """What is left of the budget [s]."""
        return self.budget_s - (time.perf_counter() - self.started)

    def go(self, repeats: int) -> LiveReport:
        """Do all of it."""
        device, timed = timed_device(
            self.backend, KERNELS_SHARE * self.budget_s, self.folder / "kernels", self.seed, self.say
        )
        engine = live_engine(device, timed)
        setup = sized(SETUPS[self.kind], device, engine)
        files = write_files(self.folder, setup, device, engine)
        decoder = self._decoder(setup)
        before, stretch = self._fit_turn(setup, files, decoder, 0, 1)
        write_files(self.folder, setup, device, fit_steps(before, device, engine, setup.model).engine)
        loads = self._loads(setup, files, self._load_seconds(repeats, stretch))
        first = {load.name: predicted(load) for load in loads}
        served: dict[str, list[LoadFigures]] = {load.name: [] for load in loads}
        steps: list[ServedStep] = []
        for i in range(repeats):
            for load in loads:
                self.say(f"serving {load.name}, {i + 1} of {repeats}")
                turn = len(loads) * i + loads.index(load) + 1
                served[load.name].append(self._serve(load, decoder)[0])
                steps += self._fit_turn(setup, files, decoder, turn, len(loads))[0]
        fit = fit_steps(steps, device, engine, setup.model)
        write_files(self.folder, setup, device, fit.engine)
        return LiveReport(
            device=device.id,
            clock="CPU time of the process" if self.kind == "cpu" else "wall time",
            model=setup.model,
            fit=fit,
            loads=tuple(
                LoadReport(load.name, predicted(load), first[load.name], tuple(served[load.name]))
                for load in loads
            ),
            seconds=time.perf_counter() - self.started,
        )

    def _load_seconds(self, repeats: int, stretch: float) -> float:
        """Return how long a closed loop may take, once, by the clock [s].

        Rounds of fitting are as long as the first; of a Poisson load, the idle part takes no wall time.
        """
        rounds_s = repeats * self.round_wall_s
        busy = repeats * (1.0 + LOAD * POISSON_LENGTH)
        each_s = max(_SLACK * (self.left_s - rounds_s), 0.0) / busy / stretch
        each_s = min(each_s, LONGEST_LOAD_SHARE * self.budget_s)
        self.say(
            f"{self.left_s:.0f} s left, {rounds_s:.0f} s of it for steps of other loads; loads of {each_s:.1f} s"
        )
        return each_s

    def _decoder(self, setup: LiveSetup) -> Decoder:
        """Return the model, having run steps of many sizes."""
        from ..kernels.decoder import Decoder

        decoder = Decoder(
            setup.model,
            str(self.backend.device),
            blocks=setup.num_blocks,
            longest=setup.max_model_len,
            seed=self.seed,
        )
        blocks = list(range(-(-setup.max_model_len // BLOCK)))
        sizes = np.unique(np.linspace(1, setup.max_num_batched_tokens, _WARM_SIZES).astype(int)).tolist()
        for size in sizes:
            decoder.step([Scheduled([1] * size, 0, blocks)])
        for count in range(1, setup.max_num_seqs + 1):
            for before in (0, setup.max_model_len - 1):
                decoder.step([Scheduled([1], before, blocks)] * count)
        return decoder

    def _fit_turn(
        self, setup: LiveSetup, files: LiveFiles, decoder: Decoder, number: int, parts: int
    ) -> tuple[list[ServedStep], float]:
        """Serve every ``parts``-th load that steps are fitted to, as short as can be; return steps, wall over clock."""
        kinds = [(users, setup.decoding) for users in setup.decoding_users]
        kinds += [(users, setup.prefilling) for users in setup.prefilling_users]
        steps: list[ServedStep] = []
        wall, told = time.perf_counter(), 0.0
        for i, (users, lengths) in enumerate(kinds[number % parts :: parts]):
            closed, seed = {"kind": "closed_loop", "concurrency": users}, self.seed + 1000 + 100 * number + i
            load = scenario_of(setup, files, "fit", closed, users + FIT_TURNS, seed, lengths)
            found, made = self._serve(load, decoder)
            steps += made
            told += found.duration_s
        taken = time.perf_counter() - wall
        self.round_wall_s = taken * parts
        self.say(f"{len(steps)} steps of other loads: {told:.1f} s by the clock, {taken:.1f} s of wall time")
        return steps, max(taken / told, 1.0)

    def _loads(self, setup: LiveSetup, files: LiveFiles, each_s: float) -> list[Scenario]:
        """Return the judged loads, each of about ``each_s`` seconds."""
        closed = {"kind": "closed_loop", "concurrency": setup.concurrency}
        probe = scenario_of(setup, files, "closed loop", closed, 200, self.seed, setup.judged)
        rate = predicted(probe).requests_per_s
        poisson = {"kind": "poisson", "rate_per_s": round(LOAD * rate, 4)}
        counts = {"Poisson": POISSON_LENGTH * LOAD * rate * each_s, "closed loop": rate * each_s}
        return [
            scenario_of(
                setup,
                files,
                name,
                arrivals,
                max(round(counts[name]), _FEWEST_REQUESTS),
                self.seed,
                setup.judged,
            )
            for name, arrivals in (("Poisson", poisson), ("closed loop", closed))
        ]

    def _serve(self, load: Scenario, decoder: Decoder) -> tuple[LoadFigures, list[ServedStep]]:
        """Serve a load for real."""
        resolved = resolve(load)
        assert resolved.workload is not None
        engine = ReferenceEngine(
            make_scheduler(resolved),
            make_allocator(resolved, size_pool(resolved)),
            decoder,
            self.clock,
            vocab=resolved.model.vocab,
            seed=self.seed,
        )
        requests = engine.serve(resolved.workload)
        columns = (
            np.array([getattr(request, name) for request in requests], dtype=np.int64)
            for name in ("arrival_ns", "first_token_ns", "last_token_ns", "output_tokens")
        )
        return figures_of(*columns, steps=len(engine.steps)), engine.steps


def predicted(load: Scenario) -> LoadFigures:
    """Return what the simulator predicts for a load."""
    record = simulate(load).record
    columns = (
        record.requests[name] for name in ("arrival_ns", "first_token_ns", "last_token_ns", "output_tokens")
    )
    return figures_of(*columns, steps=record.counts["steps"])
