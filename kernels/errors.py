"""What the kernels say of a machine that cannot run them."""

from __future__ import annotations

from importlib.util import find_spec

from ..hwmodels.errors import MemboundError

INSTALL = "pip install 'membound[calibrate]'"


class KernelError(MemboundError):
    """A kernel that cannot be run as asked; one line: what, what is allowed, where."""


def require_torch() -> None:
    """Refuse where torch is missing, naming the command that installs it.

    Raises
    ------
    KernelError : torch is not installed
    """
    if find_spec("torch") is None:
        raise KernelError(f"timing kernels needs torch, which is not installed; install it with: {INSTALL}")
