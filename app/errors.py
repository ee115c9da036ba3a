"""Every failure as one line on stderr and an exit code."""

from __future__ import annotations

import errno
import re
import sys
import traceback
import warnings
from collections.abc import Sequence

from ..hwmodels.errors import MemboundError, nearest

FAILED = 1
BAD_INPUT = 2
NOT_OURS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""What a disk refuses."""
NO_SUCH_PLACE = (
    errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM,
)  # fmt: skip
"""What is wrong with the name of a file or folder that was given."""
LONGEST = 2000
"""Characters of an error line [-]."""


def report(error: Exception, *, debug: bool = False) -> int:
    """Write an error to stderr and return the exit code: 2 for bad input, 1 for anything else.

    Parameters
    ----------
    error : what was raised
    debug : write the traceback as well
    """
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(f"{error}\n")
        return BAD_INPUT
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    text, code = _explained(error)
    sys.stderr.write(f"error: {_short(' '.join(text.split()))}\n")
    return code


def _explained(error: Exception) -> tuple[str, int]:
    """Return what to say of an error, and its exit code."""
    if isinstance(error, MemboundError):
        return str(error), BAD_INPUT
    if hasattr(error, "format_message"):  # whichever click raised it, typer's own or the package
        return _usage(error), BAD_INPUT
    if isinstance(error, OSError) and error.errno in NOT_OURS:
        return f"{error.filename or 'output'}: {error.strerror}", FAILED
    if isinstance(error, OSError) and error.filename and error.errno in NO_SUCH_PLACE:
        return f"{str(error.filename)!r} cannot be used: {error.strerror}", BAD_INPUT
    if isinstance(error, MemoryError):
        return "out of memory; try fewer requests (workload.requests, workload.trace.limit)", FAILED
    return f"internal: {type(error).__name__}: {error}; please report it, with --debug's traceback", FAILED


def _short(text: str) -> str:
    """Return a text without the middle of words, lists and names that nobody can read whole."""
    text = re.sub(r"\S{300,}", lambda word: f"{word[0][:80]}…{word[0][-40:]}", text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 500]} … {text[-490:]}"


def _usage(error: Exception) -> str:
    """Say what is wrong with a command line: the word, the nearest that exists, and where to look."""
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "membound")
    option: str | None = getattr(error, "option_name", None)
    name = re.fullmatch(r"No such command '(.*?)'.*", error.format_message(), re.DOTALL)  # type: ignore[attr-defined]
    if option and type(error).__name__ == "NoSuchOption":
        return _unknown("option", option, _options(context), command)
    if name:
        return _unknown(
            "command", name[1], list(getattr(getattr(context, "command", None), "commands", {})), command
        )
    text = error.format_message().rstrip(".").replace("Value error, ", "")  # type: ignore[attr-defined]
    return f"{text}; see {command} --help"


def _unknown(what: str, word: str, known: Sequence[str], command: str) -> str:
    close = nearest(word, known)
    listed = f"; allowed: {', '.join(known)}" if what == "command" else ""
    return f"unknown {what} {word!r}{f'; nearest: {close!r}' if close else ''}{listed}; see {command} --help"


def _options(context: object) -> list[str]:
    """Return every long option of a command."""
    parameters = getattr(getattr(context, "command", None), "params", [])
    spelled = [name for each in parameters for name in (*each.opts, *each.secondary_opts)]
    return [name for name in spelled if name.startswith("--")]


def one_line_warnings() -> None:
    """Let Python's own warnings take one line each, without the source line."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        sys.stderr.write(f"warning: {' '.join(str(message).split())}\n")

    warnings.showwarning = show  # type: ignore[assignment]
