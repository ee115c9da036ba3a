"""The two streams: results go to stdout and are always the same, everything else goes to stderr."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import typer

BROKEN_PIPE = 141
"""What a shell reports of a program whose reader went away: 128 + SIGPIPE."""


def any_encoding() -> None:
    """Let what a terminal's encoding lacks (a line, a middle dot, half of a file's name) be a question mark there."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def emit(text: str) -> None:
    """Write a result to stdout at once.

    Raises
    ------
    typer.Exit
        The reader has gone away (``| head``): nothing more to say, and no error.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains as it ends
        raise typer.Exit(BROKEN_PIPE) from None


def say(text: str, *, quiet: bool = False) -> None:
    """Write one line to stderr, unless ``quiet``."""
    if not quiet:
        sys.stderr.write(" ".join(text.split("\n")) + "\n")


def warn(warnings: Iterable[str], *, quiet: bool = False) -> None:
    """Write one line a warning to stderr, unless ``quiet``."""
    for warning in warnings:
        say(f"warning: {warning}", quiet=quiet)


def color() -> bool:
    """Tell whether stdout is a terminal that wants colour (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def progress_bar(what: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar on stderr while the block runs, on a terminal only; yields what takes (done, total)."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
