"""What a table says of the replicas of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .text import percent


def replica_lines(summary: Mapping[str, Any]) -> list[str]:
    """Say of each kind of replica how many there are, how busy they were, and how full; nothing of a single one."""
    replicas: Sequence[Mapping[str, Any]] = summary.get("replicas") or ()
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for replica in replicas:
        kinds.setdefault(replica["kind"], []).append(replica)
    return [_kind(name, each) for name, each in kinds.items()]


def _kind(name: str, replicas: Sequence[Mapping[str, Any]]) -> str:
    said = [f"{len(replicas)} x {name}"]
    busy, usage = ([replica["busy_share"] for replica in replicas], [r["kv"]["mean_usage"] for r in replicas])
    for word, values in (("busy", busy), ("KV", usage)):
        known = [value for value in values if value is not None]
        if known:
            said.append(f"{word} {_range(min(known), max(known))}")
    if any("down_s" in replica for replica in replicas):
        times, requeued = (sum(replica[key] for replica in replicas) for key in ("failures", "requeued"))
        said.append(f"{times:,} failures, down {sum(replica['down_s'] for replica in replicas):.1f} s")
        said.append(f"{requeued:,} routed again")
    completed = sum(replica["requests"]["completed"] for replica in replicas)
    return " ".join(said) + f" ({completed:,} requests)"


def handover_lines(summary: Mapping[str, Any]) -> list[str]:
    """Say of KV that went from prefill to decode replicas how much it was, and what it waited for."""
    found: Mapping[str, Any] | None = summary.get("handovers")
    if found is None:
        return []
    said = [f"{found['requests']:,} prompts, {found['bytes'] / 1e9:.2f} GB"]
    for key, word in (
        ("wait_for_blocks_s", "wait for blocks"), ("wait_for_link_s", "for the link"), ("transfer_s", "transfer"),
    ):  # fmt: skip
        if found[key] is not None:
            said.append(f"{word} {found[key]['mean'] * 1e3:.1f} ms (p99 {found[key]['p99'] * 1e3:.1f})")
    lines = ["   ".join(said)]
    if found["local_prefills"]:
        lines.append(f"{found['local_prefills']:,} prompts computed on their decode replica")
    return lines


def _range(low: float, high: float) -> str:
    least, most = percent(low), percent(high)
    return most if least == most else f"{least.removesuffix(' %')} to {most}"
