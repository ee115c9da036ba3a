"""Serves a workload: on one engine, or on several behind a router."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .clock import Clock
from .fields import ScenarioError
from .fleet import Fleet
from .source import Source

if TYPE_CHECKING:
    from .admission import Gate
    from .failures import Outages
    from .replica import Replica
    from .request import Request
    from .router.base import Router
    from .workload.workload import Workload

Progress = Callable[[int, int], None]


def serve(
    workload: Workload,
    replicas: Sequence[Replica],
    router: Router | None = None,
    progress: Progress | None = None,
    gate: Gate | None = None,
    outages: Outages | None = None,
) -> None:
    """Serve a workload until every request has ended.

    Parameters
    ----------
    workload : the requests
    replicas : the engines that serve it; they start empty
    router : who sends each request to one of them; None where there is one
    progress : called now and then with the requests that have ended, and all of them
    gate : turns requests away before they are routed
    outages : when replicas behind a router fail
    """
    env = Clock(0)
    ended, total = 0, len(workload)

    def on_finish(request: Request) -> None:
        nonlocal ended
        ended += 1
        if progress is not None and (ended % 1024 == 0 or ended == total):
            progress(ended, total)
        source.finished(request)
        if fleet is not None and ended == total:
            fleet.closed = True

    requests = workload.iter_requests(_block_size(workload, replicas, router))
    load = (workload.closed_loop, workload.follows)
    fleet = None if router is None else Fleet(env, replicas, router, on_finish, gate, outages)
    if fleet is None:
        engine = replicas[0].start(env, on_finish)
        source = Source(env, requests, engine.submit, *load)
        engine.connect(source)
    else:
        source = Source(env, requests, fleet.submit, *load, in_turn=True)
    with no_cycles():
        env.run()
    if ended != total:
        raise RuntimeError(f"{total - ended} of {total} requests were never served")
    for replica in replicas:
        replica.recorder.close_books()


def _block_size(workload: Workload, replicas: Sequence[Replica], router: Router | None) -> int | None:
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
    return None if router is None else replicas[0].allocator.block_size


@contextmanager
def no_cycles() -> Generator[None]:
    """Pause the collector of reference cycles: a run makes none, and the search costs a tenth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
