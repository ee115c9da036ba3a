"""Work that takes a while: done beside the page, with progress, and ended when nobody wants it any more.

Nothing here knows Streamlit. A job runs in a thread; what it calls tells its progress, and there it is stopped.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Progress = Callable[[int, int], None]
NICE = 5
"""How much the workers of long jobs stand back for the page [nice]."""


class Stopped(BaseException):
    """Raised inside a job that was stopped; no fault of the work, so no handler of faults may catch it."""


class Job(Generic[T]):
    """Some work in a thread of its own.

    Parameters
    ----------
    work : called with what takes its progress (done, of how many); what it returns is the result
    """

    def __init__(self, work: Callable[[Progress], T]) -> None:
        self.done, self.total = 0, 0
        self.begun = time.monotonic()
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[Progress], T]) -> None:
        try:
            with _standing_back():
                self._result.append(work(self._tell))
        except BaseException as error:
            self._error = error

    def _tell(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise Stopped
        self.done, self.total = done, total

    def wait(self, seconds: float) -> bool:
        """Wait so long at most; tell whether the work has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End the work where it next tells its progress."""
        self._stop.set()

    @property
    def share(self) -> float:
        """How much is done, 0 to 1."""
        return min(self.done / self.total, 1.0) if self.total else 0.0

    def result(self) -> T:
        """Return what the work returned.

        Raises
        ------
        Stopped : it was stopped
        Exception : what the work raised
        """
        if self._error is not None:
            raise self._error
        return self._result[0]


class Kept(Generic[T]):
    """The latest results by key, for all sessions of a server.

    Parameters
    ----------
    most : how many; the one that was not asked for longest goes first
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        """Return what is kept under a key, or None."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key)

    def keep(self, key: Hashable, value: T) -> T:
        """Keep a value and return it."""
        with self._lock:
            self._held[key] = value
            self._held.move_to_end(key)
            while len(self._held) > self._most:
                self._held.popitem(last=False)
        return value


def _standing_back() -> Any:
    """Return a context in which joblib's processes leave the processor to the page when it wants it."""
    import joblib

    return joblib.parallel_config(backend="loky", initializer=_nice)


def _nice() -> None:
    if hasattr(os, "nice"):
        os.nice(NICE)
