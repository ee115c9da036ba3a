"""The engine: composes steps, runs them on the device, hands out tokens, and jumps over steps that repeat.

The loop is that of vLLM V1. Synchronously a step is composed when the one before it has ended. Asynchronously up to two
are composed and not applied, so that step k + 2 is composed when step k has ended and k + 1 starts. Between two events
that can change a decision the same decode batch repeats; the engine then takes many steps at once (a *run*), with the
same clock, to the nanosecond, as one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from ..clock import STEPS, Call, call_when
from .decoding import DecodeCohort
from .drafting import SpeculativeCohort
from .flight import EngineState, Flight, PhaseTimer, Run, StepTimer, launcher, peaks_of
from .jumping import Jumping
from .pipeline import Pipeline, recall
from .request import RUNNING, Request, Status, refusal, sort_as
from .speculative import Drafted, Speculation
from .stepload import StepLoad

if TYPE_CHECKING:
    import simpy

    from ...hwmodels.cascade import SharedPrefix
    from ..books.recorder import Recorder
    from ..clock import Clock
    from ..device.resources import SharedDevice
    from ..kvcache.base import KVAllocator
    from ..scheduler.base import Scheduler
    from ..tiers.mover import Mover
    from .flight import Arrivals, Observer
    from .selection import PromptSelection

NOT_YET = 1 << 62


class Engine(Jumping):
    """One replica of a serving engine on a SimPy clock of integer nanoseconds.

    Parameters
    ----------
    env : SimPy environment whose ``now`` is an int [ns]
    scheduler, allocator, timer : the policy, the KV memory and the price of a step
    recorder : where everything that happens is written down
    max_model_len : longest sequence; longer requests are rejected [tokens]
    async_scheduling : compose one step ahead
    fast_forward : take repeating steps at once; the results are the same
    cohort : keep the decoding requests as one object; off, each is looked at in every step, with the same results
    on_finish : called with every request that ends
    device : a device that others use too: every step is then work on its resources, in phases, and takes as
        long as they let it; None is a device of one's own, whose clock is arithmetic
    mover : carries KV between the device and the tiers behind it, beside the steps; None without them
    speculation : how many tokens are drafted and accepted; the timer is then a ``SpeculativeTimer``
    pipeline : stages that each step passes, several steps at a time; the requests are then looked at one by one
    selection : what is kept of a prompt's KV once it is computed; None: all
    among_others : other engines live on the same clock: at an instant all steps end before requests arrive, and all
        requests arrive before steps are composed, so that nothing depends on whose turn SimPy takes first
    """

    def __init__(
        self,
        env: Clock,
        scheduler: Scheduler,
        allocator: KVAllocator,
        timer: StepTimer,
        recorder: Recorder,
        *,
        max_model_len: int,
        async_scheduling: bool = False,
        fast_forward: bool = True,
        cohort: bool = True,
        on_finish: Callable[[Request], None] = lambda request: None,
        observer: Observer | None = None,
        device: SharedDevice | None = None,
        mover: Mover | None = None,
        speculation: Speculation | None = None,
        pipeline: Pipeline | None = None,
        selection: PromptSelection | None = None,
        among_others: bool = False,
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self.allocator = allocator
        self.timer = timer
        self.recorder = recorder
        self.max_model_len = max_model_len
        self.async_scheduling = async_scheduling
        self.pipeline = pipeline
        self.depth = pipeline.depth if pipeline else 2 if async_scheduling else 1
        self.fast_forward = fast_forward and device is None and pipeline is None
        self.cohort = cohort and pipeline is None
        self.deliver: Callable[[int], None] = lambda now: None
        self.next_arrival_ns: Callable[[], int | None] = lambda: None
        self.on_finish = on_finish
        self.observer = observer
        self.device = device
        self.mover = mover
        self.among_others = among_others
        self.may_rest = False  # where another engine says when to look again
        self.fetching = {}
        self.on_fetch = None
        self._news = []
        self.on_stopped = None
        if mover is not None and device is not None:
            raise ValueError("KV tiers on a device that others use too are not built yet")

        self.running: list[Request] = []
        self.waiting = scheduler.queue()
        self.speculation = speculation
        self.selection = selection
        self.shared_prefix: SharedPrefix | None = getattr(timer, "shared_prefix", None)
        self.decoding = (
            DecodeCohort(allocator.growth_tokens)
            if speculation is None
            else SpeculativeCohort(
                allocator.growth_tokens, speculation, max_model_len, async_scheduling, self._overruns
            )
        )
        self.individuals: list[Request] = []
        self.padding = DecodeCohort(allocator.growth_tokens)
        self.flights: deque[Flight] = deque()
        self.run: Run | None = None
        self.device_free_ns = 0
        self.steps = 0
        self.live_tokens = 0
        self._pace_ns = 0
        self._wake: simpy.Event | None = None
        self._busy = False

    def connect(self, arrivals: Arrivals) -> None:
        """Ask ``arrivals`` at every composing instant to submit whoever has arrived by then."""
        self.deliver, self.next_arrival_ns = arrivals.deliver, arrivals.next_arrival_ns

    # -- what the outside does ----------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Take in a request that arrives now, or reject it with a reason."""
        reason = self.refuses(request)
        if reason is not None:
            self.turn_away(request, reason)
            return
        if self.speculation is None:
            request.draft = None
        elif request.draft is None:  # another replica, which failed, may have drafted for it
            request.draft = Drafted()
        self.waiting.push(request)
        if self._busy:
            return
        if self._wake is None:
            self._wake_at(self.env.now)
        elif self.run is not None and self.scheduler.arrival_matters(self, request):
            self._cut(self.env.now)

    def refuses(self, request: Request) -> str | None:
        """Return why a request could never be served here, None if it could."""
        found = refusal(request, self.max_model_len, self.allocator, self.decoding.margin)
        return found or self.scheduler.refuses(request)

    def state_at(self, time_ns: int) -> EngineState:
        """Return how full the engine is, also in the middle of a jump.

        What is composed at ``time_ns``, which is now or the next nanosecond, is not in it.
        """
        used = self.allocator.num_blocks - self.allocator.free_blocks
        if self.run is not None and (composed := self.run.composed_before(time_ns, self.depth)):
            used += self.decoding.blocks_needed(composed)
        return EngineState(used, self.allocator.num_blocks, len(self.running), len(self.waiting))

    def turn_away(self, request: Request, reason: str) -> None:
        """Reject a request that has never run."""
        request.status = Status.REJECTED
        request.reject_reason = reason
        self.recorder.finish(request)
        self.on_finish(request)

    # -- what the scheduler does (SchedulerView) ----------------------------------------------------------------

    def dissolve(self) -> None:
        """Turn every decoding request into an individual."""
        cohort = self.decoding
        if not cohort.count:
            return
        members = list(cohort.members)
        self._call_back(members)
        everyone = set(self.individuals).union(members)
        self.individuals = [request for request in self.running if request in everyone]

    def _call_back(self, members: Sequence[Request]) -> None:
        """Take members out of the cohort while composing; a step in flight delivers to them one by one."""
        in_flight, applied = 0, self.steps - 1
        if self.flights:
            ahead = self.flights[-1]
            already = set(ahead.emitting)
            ahead.emitting.extend(request for request in members if request not in already)
            in_flight, applied = 1, ahead.step - 1
        for request in members:
            self._leave_cohort(request, in_flight, applied)

    def preempt(self, request: Request) -> None:
        """Stop a running request and queue it again; a token in flight still comes."""
        if request in self.decoding:
            self._call_back([request])
        if not self.allocator.swap_out(request):
            self.allocator.free(request, request.num_computed_tokens - request.num_pending_tokens)
        self.live_tokens -= request.num_held_tokens
        request.num_computed_tokens = request.num_evicted_tokens = 0
        if request.draft is not None:
            request.draft.stop()
        if self.pipeline is not None:
            self.recorder.wasted_tokens += recall(self.flights, request)
        if request.num_pending_tokens:
            flight = self.flights[-1]
            if request in flight.emitting:
                flight.emitting.remove(request)
            flight.late.append(request)
            request.num_pending_tokens = 0
        request.num_preemptions += 1
        self.recorder.preemptions += 1
        request.status = Status.PREEMPTED
        self.running.remove(request)
        if request in self.individuals:
            self.individuals.remove(request)
        self.waiting.requeue(request)

    @property
    def now_ns(self) -> int:
        """The time [ns]."""
        return self.env.now

    def shed(self, request: Request, reason: str) -> None:
        """Reject the first waiting request."""
        self.waiting.pop()
        self.turn_away(request, reason)

    def admit(self, request: Request, cached: int) -> None:
        """Move the first waiting request to the running ones."""
        self.waiting.pop()
        self._run(request, cached)

    def _run(self, request: Request, cached: int) -> None:
        self.running.append(request)
        self.individuals.append(request)
        request.status = RUNNING
        request.num_computed_tokens = cached
        self.live_tokens += cached
        if request.first_scheduled_ns < 0:
            request.first_scheduled_ns = self.env.now
            request.num_cached_tokens = cached

    # -- the loop -----------------------------------------------------------------------------------------------

    def _wake_at(self, time_ns: int) -> None:
        self._wake = Call(self.env, time_ns, self._on_wake)

    def _await(self, flight: Flight) -> None:
        """Wake up when a step ends."""
        if flight.work is None:
            self._wake = Call(self.env, flight.end_ns, self._on_wake)
        else:
            self._wake = call_when(flight.work.done, self._on_wake)

    def _launch_next(self, now: int) -> None:
        """On a shared device, start the step that comes next: the one before it has just ended."""
        if not self.flights:
            return
        flight = self.flights[0]
        if flight.launch is not None:
            flight.start_ns, flight.work = now, flight.launch()
        elif flight.work is None:
            flight.start_ns = flight.end_ns = now
        flight.launch = None

    def _on_wake(self, event: simpy.Event) -> None:
        if event is not self._wake:
            return
        self._wake = None
        self._busy = True
        now = self.env.now
        if self.flights:
            self._end_of(self.flights[0], now)
        if self.run is not None:
            if self._continue_run(now):
                self._busy = False
                return
            self._settle_run()
        if self.among_others:
            if self.env.peek() <= now:  # others may end or arrive at this very instant
                self._busy = False
                self._wake = Call(self.env, now, self._on_turn, STEPS)
                return
            self.env.composed_ns = now
        self._go_on(now)

    def _end_of(self, flight: Flight, now: int) -> None:
        """Apply the first step under way, if it has ended by now."""
        if flight.work is not None and flight.work.completed:
            flight.end_ns = now
            self.recorder.end_one(flight)
        if flight.end_ns <= now:
            self.flights.popleft()
            if self.device is not None:
                self._launch_next(now)
            if self.run is not None and flight.last:
                self._apply_before_run(flight, now)
            else:
                self._apply(flight)

    def _on_turn(self, event: simpy.Event) -> None:
        """Compose what comes next: all that ends or arrives at this instant has."""
        if event is self._wake:
            self._wake = None
            self._busy = True
            self.env.composed_ns = self.env.now
            self._go_on(self.env.now)

    def _go_on(self, now: int) -> None:
        """Compose steps until the next one has to wait."""
        flights = self.flights
        while True:
            self.deliver(now)
            if self._news:
                self._take_news()
            if (self.running or self.waiting) and self.on_stopped is None:
                worked = self._compose(now)
                if self.run is not None:
                    break
                idles = False
                if not worked:
                    rests = self._rests
                    if rests and not flights:
                        break
                    if self.waiting and not (rests or self.running or any(f.steps for f in flights)):
                        raise RuntimeError(
                            f"the {self.scheduler.name} scheduler admits nobody to an empty engine"
                        )
                    idles = bool(self.pipeline or rests or not (self.running or self.waiting))
                if len(flights) < self.depth and not idles:
                    continue
            if not flights:
                break
            if flights[0].end_ns > now:
                self._await(flights[0])
                break
            flight = flights.popleft()
            if self.device is not None:
                self._launch_next(now)
            self._apply(flight)
        self._busy = False
        if self.on_stopped is not None and not flights:
            self._hand_over(self.on_stopped)

    @property
    def _rests(self) -> bool:
        """Whether those who wait may wait for what others hold, who will say when to look again."""
        return self.may_rest or bool(self.fetching and not self.running)

    def _compose(self, now: int) -> bool:
        """Compose one step, or a run; tell whether it computes anything."""
        cohort, padding, rules = self.decoding, self.padding, self.speculation
        if rules is not None:
            cohort.switch(self._drafts(len(self.running)))
        batch = self.scheduler.schedule(self, self.allocator)
        works = batch.decoding or batch.tokens
        if not works and (self._rests or not (self.running or self.waiting or batch.preempted)):
            return False  # the last who waited were shed, or all wait for what others hold
        load = StepLoad(self.timer.needs_contexts)
        if batch.decoding:
            self.live_tokens += load.add_cohort(cohort)
        if padding.count:
            load.add_cohort(padding)
        for request, tokens in batch.tokens.items():
            self.live_tokens += load.add_request(request, tokens, cohort.queries, rules)
        if self.selection is not None or self.shared_prefix is not None:
            load.complete(self)

        start = self.device_free_ns if self.device_free_ns > now else now
        flight = Flight(now, start, start, self.steps, 1)
        if batch.decoding and (last := cohort.at_last()):
            flight.last = last
            self._retire(last, self.flights[-1] if self.flights else None, self.steps - 1)
        durations = None
        if batch.decoding and self.fast_forward and not flight.last:
            steps = 1 + self._repetitions(batch, start)
            if steps > 1:
                durations = cohort.run_ns(self.timer, load, steps).tolist()
                if self.mover is not None and not self.mover.clears(
                    start, durations[0], peaks_of(cohort.timer(self.timer), load)
                ):
                    durations = None
        if durations is None and not self._time(flight, load, now):
            return False  # all who run are under way: what comes back first is waited for
        if load.emitting:
            flight.emitting = load.emitting
            self._promote(load.emitting, flight)
        if flight.steps:
            self.recorder.begin(self, flight, batch, load, 1 if durations is None else len(durations))
        else:
            self.recorder.empty_batches += 1
        if load.selecting:
            load.drop(self)
        if durations is None:
            self._send_off(flight, now)
        else:
            self._begin_run(flight, durations, now)
        if self.observer is not None:
            self.observer.composed(self, flight, batch)
        return load.sampled > 0

    def _time(self, flight: Flight, load: StepLoad, now: int) -> bool:
        """Find out when a single step ends, as far as that can be known; False if there is none to take."""
        if self.pipeline is not None:
            if not load.sampled:
                return False
            flight.start_ns, flight.end_ns = self.pipeline.enter(now, load.counts)
            return True
        duration, timer = 0, self.timer if self.speculation is None else self.decoding.timer(self.timer)
        if load.sampled or self.depth == 1:
            duration = timer.step_ns(*load.counts)
        flight.end_ns = flight.start_ns + duration
        if not (load.sampled or duration):
            flight.steps = 0
        if self.mover is not None and flight.steps:
            phased = cast("PhaseTimer", timer)
            flight.end_ns, flight.moved = self.mover.step(
                flight.start_ns, duration, lambda: phased.phases(*load.counts), peaks_of(timer, load)
            )
        if self.device is not None:
            flight.end_ns = NOT_YET
            if flight.steps:
                flight.launch = launcher(self.device, cast("PhaseTimer", timer), load.counts, duration)
        return True

    def _send_off(self, flight: Flight, now: int) -> None:
        """Send a single step on its way."""
        self.steps += flight.steps
        self.flights.append(flight)
        if self.device is None:
            if flight.steps:
                self.recorder.end_one(flight)
            self.device_free_ns = flight.end_ns
        elif len(self.flights) == 1:
            self._launch_next(now)

    def _drafts(self, running: int) -> int:
        """Return the tokens that a decoding request computes in a step of a batch of so many [tokens]."""
        rules = self.speculation
        return 1 if rules is None or rules.off(running) else rules.queries

    def _retire(self, last: list[Request], ahead: Flight | None, applied: int) -> None:
        """Put members whose last token has just been computed in running order; those whose end is foreseen leave.

        ``ahead`` is the step before, if it is not applied; ``applied`` the last step that is, or ``ahead``'s.
        """
        if len(last) > 1:
            sort_as(self.running, last)
        if self.depth == 1:
            return
        in_flight, delivered = (1, applied) if ahead is None else (2, ahead.step - 1)
        for request in last:
            if not self._overruns(request, self.decoding.last_tokens(request)):
                if ahead is not None and request not in ahead.emitting:
                    ahead.emitting.append(request)
                self._leave_cohort(request, in_flight, delivered)

    def _leave_cohort(self, request: Request, in_flight: int, applied: int) -> None:
        """Write a member's progress back to it.

        ``in_flight`` of its tokens are computed but not delivered; ``applied`` is the last step whose outputs are.
        """
        self.decoding.leave(request)
        self.recorder.close(request, applied)
        pending = in_flight if request.draft is None else request.draft.in_flight(in_flight)
        request.num_pending_tokens = pending
        request.num_output_tokens = request.num_computed_tokens + 1 - request.input_tokens - pending

    def _promote(self, emitting: list[Request], flight: Flight) -> None:
        """Move requests that have caught up with what is known of them to the decode cohort, or to their last step."""
        individuals, of_cohort = self.individuals, len(flight.last)
        for request in emitting:
            left = request.num_tokens_needed - request.num_computed_tokens
            tokens = 1 if request.draft is None else request.draft.propose()
            if self.pipeline is None:
                request.num_pending_tokens += tokens
            if left == 0:
                flight.last.append(request)
                if not self._overruns(request, tokens):
                    individuals.remove(request)
            elif left > 0 and self.cohort and not self.allocator.tracks_content_of(request):
                self.decoding.join(request, left)
                individuals.remove(request)
        if 0 < of_cohort < len(flight.last):
            # They give their blocks back in the order of their turns, whoever kept count of them.
            sort_as(self.running, flight.last)

    def _overruns(self, request: Request, last_tokens: int = 1) -> bool:
        """Tell whether the scheduler cannot foresee the end of ``request`` and computes one step too many.

        It counts on one token of the step in flight: an end that drafted tokens bring (``last_tokens`` in its last
        emission) comes sooner than foreseen.
        """
        return (
            self.async_scheduling
            and (request.max_tokens > request.output_tokens or last_tokens > 1)
            and request.input_tokens + request.output_tokens < self.max_model_len
        )
