"""Calibration: from timed kernels to a device's fitted lanes, with their error bars.

Design (which shapes), measure, screen, fit, evaluate, publish. Everything that times or counts is the
simulator's own: ``hwmodels.timing`` and ``hwmodels.lowering``.

The package is what ``mb.calibrate`` names, so it can be called: ``mb.calibrate("cuda", out="run")`` is
``calibrate.session.calibrate``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A package that can be called, since a function of its name would be hidden by it once it is imported."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        from .session import calibrate

        return calibrate(*args, **options)


sys.modules[__name__].__class__ = _Callable
