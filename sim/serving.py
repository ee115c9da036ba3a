"""Serves a workload: on one engine, or on several behind a router."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .clock import Clock
from .engine.source import Source
from .fields import ScenarioError

if TYPE_CHECKING:
    from .cluster.fleet import Fleet
    from .cluster.replica import Replica
    from .engine.request import Request
    from .workload.workload import Workload

    MakeFleet = Callable[[Clock, Callable[[Request], None]], Fleet]

Progress = Callable[[int, int], None]


def serve(
    workload: Workload,
    replicas: Sequence[Replica],
    make_fleet: MakeFleet | None = None,
    progress: Progress | None = None,
) -> None:
    """Serve a workload until every request has ended.

    Parameters
    ----------
    workload : the requests
    replicas : the engines that serve it; they start empty
    make_fleet : puts them behind a router, given the clock and whom to tell of every request that ends; None where
        there is one
    progress : called now and then with the requests that have ended, and all of them
    """
    env = Clock(0)
    tally = Tally(len(workload), progress)

    def on_finish(request: Request) -> None:
        tally.add()
        source.finished(request)
        if fleet is not None and tally.whole:
            fleet.closed = True

    requests = workload.iter_requests(_block_size(workload, replicas, make_fleet is not None))
    load = (workload.closed_loop, workload.follows)
    fleet = None if make_fleet is None else make_fleet(env, on_finish)
    if fleet is None:
        engine = replicas[0].start(env, on_finish)
        source = Source(env, requests, engine.submit, *load)
        engine.connect(source)
    else:
        source = Source(env, requests, fleet.submit, *load, in_turn=True)
    run_out(env, tally, replicas)


def _block_size(workload: Workload, replicas: Sequence[Replica], routed: bool) -> int | None:
    """Return the tokens of the blocks that shared prefixes are told in, None where nobody asks [tokens].

    Raises
    ------
    ScenarioError : replicas share prefixes in blocks of different sizes
    """
    sizes = list(dict.fromkeys(size for replica in replicas if (size := replica.block_size) is not None))
    if len(sizes) > 1 and workload.prefix is not None:
        raise ScenarioError(
            f"cluster.replicas: prefixes are cached in blocks of {', '.join(map(str, sizes))} tokens; allowed: one "
            "kv_cache.block_size, or enable_prefix_caching: false on the others"
        )
    if sizes:
        return sizes[0]
    return replicas[0].allocator.block_size if routed else None


class Tally:
    """How many requests of a run have ended.

    Parameters
    ----------
    total : all of them
    progress : called now and then with those that have ended, and all of them
    """

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.ended, self.total = 0, total
        self._progress = progress

    def add(self) -> None:
        """Count one more."""
        self.ended += 1
        if self._progress is not None and (self.ended % 1024 == 0 or self.whole):
            self._progress(self.ended, self.total)

    @property
    def whole(self) -> bool:
        """Whether all have ended."""
        return self.ended == self.total


def run_out(env: Clock, tally: Tally, replicas: Iterable[Replica]) -> None:
    """Let a run go to its end, see that everybody was served, and close the books of its replicas."""
    with _no_cycles():
        env.run()
    if not tally.whole:
        raise RuntimeError(f"{tally.total - tally.ended} of {tally.total} requests were never served")
    for replica in replicas:
        replica.recorder.close_books()


@contextmanager
def _no_cycles() -> Generator[None]:
    """Pause the collector of reference cycles: a run makes none, and the search costs a tenth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
