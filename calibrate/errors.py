"""What calibration says of bad input."""

from __future__ import annotations

from ..hwmodels.errors import MemboundError


class CalibrationError(MemboundError):
    """A table, run or fit that cannot be used; one line: what, what is allowed, the nearest, where."""
