"""Fits of one kernel family each: robust least squares in log parameters, with priors."""

from .base import FitResult as FitResult
from .base import Parameter as Parameter
from .base import robust_fit as robust_fit
