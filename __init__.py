"""membound: is the GPU computing, or starving for data? A discrete-event simulator of LLM serving.

The names below are all that a script needs; each is loaded when it is first used.

Examples
--------
>>> import membound as mb
>>> mb.load_device("h100_sxm").hbm_bandwidth
3350000000000.0
>>> mb.size(mb.Scenario(device="h100_sxm", model="llama-3.1-8b")).memory["fits"]
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import calibrate
    from .calibrate.run import CalibrationRun
    from .hwmodels.device import DeviceProfile, list_devices, load_device
    from .hwmodels.engine import EngineProfile, list_engines, load_engine
    from .hwmodels.errors import MemboundError
    from .hwmodels.model import ModelSpec, list_models, load_model
    from .hwmodels.sizing import SizeReport
    from .hwmodels.stepmodel import StepModel
    from .sim.draws import simulate_draws
    from .sim.output.result import SimulationResult
    from .sim.output.view import view_of
    from .sim.run import simulate
    from .sim.scenario import Scenario, load_scenario, resolve
    from .sim.sizing import size
    from .sim.studies.capacity_plan import load_plan
    from .sim.studies.compare import Comparison, compare
    from .sim.studies.explain import explain
    from .sim.studies.plan import plan
    from .sim.studies.roofline import roofline
    from .sim.studies.scaling import scaling
    from .sim.studies.study import load_study, study
    from .sim.studies.sweep import sweep
    from .sim.studies.waterfall import waterfall

    __version__: str

__all__ = [
    "CalibrationRun",
    "Comparison",
    "DeviceProfile",
    "EngineProfile",
    "MemboundError",
    "ModelSpec",
    "Scenario",
    "SimulationResult",
    "SizeReport",
    "StepModel",
    "__version__",
    "calibrate",
    "compare",
    "explain",
    "list_devices",
    "list_engines",
    "list_models",
    "load_device",
    "load_engine",
    "load_model",
    "load_plan",
    "load_scenario",
    "load_study",
    "plan",
    "resolve",
    "roofline",
    "scaling",
    "simulate",
    "simulate_draws",
    "size",
    "study",
    "sweep",
    "view_of",
    "waterfall",
]

_HOME = {
    "CalibrationRun": "calibrate.run",
    "Comparison": "sim.studies.compare",
    "DeviceProfile": "hwmodels.device",
    "EngineProfile": "hwmodels.engine",
    "MemboundError": "hwmodels.errors",
    "ModelSpec": "hwmodels.model",
    "Scenario": "sim.scenario",
    "SimulationResult": "sim.output.result",
    "SizeReport": "hwmodels.sizing",
    "StepModel": "hwmodels.stepmodel",
    "calibrate": "",
    "compare": "sim.studies.compare",
    "explain": "sim.studies.explain",
    "list_devices": "hwmodels.device",
    "list_engines": "hwmodels.engine",
    "list_models": "hwmodels.model",
    "load_device": "hwmodels.device",
    "load_engine": "hwmodels.engine",
    "load_model": "hwmodels.model",
    "load_plan": "sim.studies.capacity_plan",
    "load_scenario": "sim.scenario",
    "load_study": "sim.studies.study",
    "plan": "sim.studies.plan",
    "resolve": "sim.scenario",
    "roofline": "sim.studies.roofline",
    "scaling": "sim.studies.scaling",
    "simulate": "sim.run",
    "simulate_draws": "sim.draws",
    "size": "sim.sizing",
    "study": "sim.studies.study",
    "sweep": "sim.studies.sweep",
    "view_of": "sim.output.view",
    "waterfall": "sim.studies.waterfall",
}


def __getattr__(name: str) -> Any:
    """Load one of the names above from where it lives."""
    if name == "__version__":
        return _version()
    if name not in _HOME:
        raise AttributeError(f"module 'membound' has no attribute {name!r}; it has {', '.join(__all__)}")
    if not _HOME[name]:
        return importlib.import_module(f".{name}", __name__)
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    """List the names above."""
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("membound")
    except PackageNotFoundError:
        return "unknown"
