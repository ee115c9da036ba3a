"""Files under a temporary name beside their target, and what a killed process left of them."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

OLD_S = 600.0
"""Age of what no write can still be at work on, as another machine's process cannot be asked [s]."""


def beside(path: Path, folder: Path | None = None) -> Path:
    """Return the temporary name of a target for this process, in its folder or in another."""
    return (folder or path.parent) / f".{path.name}.{os.getpid()}.tmp"


def clear(folder: Path, name: str = "*") -> None:
    """Remove what processes that are no more left half written.

    Parameters
    ----------
    folder : where the temporary names lie
    name : of their target; any
    """
    for left in folder.glob(f".{name}.*.tmp"):
        number = left.name.split(".")[-2]
        try:
            if not number.isdigit() or _lives(int(number)) or time.time() - left.stat().st_mtime < OLD_S:
                continue
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()
        except OSError:
            continue  # it went meanwhile, or is not ours to remove


def _lives(process: int) -> bool:
    """Tell whether a process of this machine has a number; where that cannot be asked without harm, age decides."""
    if os.name != "posix":
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
