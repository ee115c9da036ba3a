"""From the groups of a cluster's replicas to the scenario of one replica of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import ValidationError

from .cluster import Cluster
from .errors import Where, one_line
from .pooling import check_pools
from .resolved import Group, ResolvedScenario
from .schema import Scenario

if TYPE_CHECKING:
    from .cluster import Pools, ReplicaSettings


def with_groups(
    resolved: ResolvedScenario, resolve_one: Callable[[Scenario], ResolvedScenario]
) -> ResolvedScenario:
    """Return a resolved scenario with its groups of replicas resolved too.

    Raises
    ------
    MemboundError : one line: what a group sets cannot be, or names what is not there
    """
    pools = resolved.scenario.cluster.pools
    if pools is not None:
        return _with_pools(resolved, pools, resolve_one)
    replicas = resolved.scenario.cluster.replicas
    if isinstance(replicas, int):
        return resolved
    groups: list[Group] = []
    for number, group in enumerate(replicas):
        own = resolve_one(scenario_of(group, resolved.scenario, f"cluster.replicas.{number}"))
        groups.append(Group(group.name or own.device.id, own, group.count))
    return replace(resolved, groups=tuple(groups))


def _with_pools(
    resolved: ResolvedScenario, pools: Pools, resolve_one: Callable[[Scenario], ResolvedScenario]
) -> ResolvedScenario:
    """Return a resolved scenario whose kinds of replicas are that for prefill and that for decode."""
    groups: list[Group] = []
    for phase, pool in (("prefill", pools.prefill), ("decode", pools.decode)):
        own = resolve_one(scenario_of(pool, resolved.scenario, f"cluster.pools.{phase}"))
        groups.append(Group(pool.name or phase, own, pool.replicas))
    check_pools(resolved.scenario, *(group.resolved for group in groups))
    return replace(resolved, groups=tuple(groups))


def scenario_of(group: ReplicaSettings, base: Scenario, key: str) -> Scenario:
    """Return the scenario of one replica of a group; ``key`` is where the group stands, for errors."""
    data = group.over(base.to_dict() | {"cluster": Cluster().model_dump(mode="json")})
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        raise one_line(error, data, Scenario, Where(key)) from None
