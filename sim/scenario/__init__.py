"""The scenario file: the whole question, as one frozen object."""

from __future__ import annotations

from ..fields import ScenarioError, WorkloadError
from .load import Assignment, load_scenario, parse_scenario, read_scenario, scenario_from
from .resolve import KVCacheSettings, ResolvedScenario, SchedulerSettings, resolve
from .schema import Scenario, json_schema
from .template import TEMPLATE

__all__ = [
    "TEMPLATE",
    "Assignment",
    "KVCacheSettings",
    "ResolvedScenario",
    "Scenario",
    "ScenarioError",
    "SchedulerSettings",
    "WorkloadError",
    "json_schema",
    "load_scenario",
    "parse_scenario",
    "read_scenario",
    "resolve",
    "scenario_from",
]
