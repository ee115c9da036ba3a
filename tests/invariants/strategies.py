"""Random engines and loads: small pools, arrivals on step boundaries and off them, every policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from membound.sim.policies import find_policy, policy_names

from .harness import Case, Host

STEP = 1000


@st.composite
def requests(
    draw: st.DrawFn, *, stops: bool, priorities: bool, classes: bool, shared: bool, block_size: int
) -> tuple[dict[str, Any], ...]:
    """Draw a load of up to 24 requests."""
    found: list[dict[str, Any]] = []
    arrival = 0
    for _ in range(draw(st.integers(1, 24))):
        gap = draw(
            st.sampled_from((0, 0, STEP, 2 * STEP, 5 * STEP, 17 * STEP, 1, STEP - 1, STEP + 1, 40 * STEP + 7))
        )
        arrival += gap
        entry: dict[str, Any] = {
            "arrival_ns": arrival,
            "input_tokens": draw(st.integers(1, 60)),
            "output_tokens": draw(st.integers(1, 40)),
        }
        if stops and draw(st.booleans()):
            entry["max_tokens"] = entry["output_tokens"] + draw(st.integers(1, 20))
        if priorities:
            entry["priority"] = draw(st.integers(0, 2))
        if classes:
            entry["tenant"] = draw(st.sampled_from((None, 0, 1)))
            entry["slo_class"] = draw(st.sampled_from(("default", "slow", "batch")))
        if shared and draw(st.booleans()):
            group = draw(st.integers(0, 2))
            blocks = draw(st.integers(0, entry["input_tokens"] // block_size))
            entry["block_hashes"] = [group * 1000 + index for index in range(blocks)]
        found.append(entry)
    return tuple(found)


OPTIONS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "orca": st.fixed_dictionaries({"reserve": st.sampled_from(("max_model_len", "max_tokens"))}),
    "priority": st.fixed_dictionaries({"aging_s": st.sampled_from((0, 3e-6, 50e-6))}),
    "sjf": st.fixed_dictionaries({"predictor_error": st.sampled_from((0.0, 0.5))}),
    "srpt": st.fixed_dictionaries(
        {"predictor_error": st.sampled_from((0.0, 0.5)), "preempt_until": st.sampled_from((0.5, 1.0))}
    ),
    "vtc": st.fixed_dictionaries({"input_weight": st.integers(1, 3), "output_weight": st.integers(1, 3)}),
}
"""Options of the policies that have some; what a step of a microsecond makes of them."""

POLICIES = policy_names("tierpolicy")
HOSTS = st.builds(
    Host,
    tiers=st.lists(st.tuples(st.sampled_from(POLICIES), st.integers(1, 30), st.booleans()), max_size=2).map(
        tuple
    ),
    swap=st.sampled_from((0, 5, 200)),
    layerwise=st.booleans(),
    hbm_load=st.sampled_from((0.5, 1.0)),
)


@st.composite
def speculations(draw: st.DrawFn) -> dict[str, Any]:
    """Draw rules of speculation: how many tokens, how many of them accepted, when it is switched off."""
    chances = draw(st.lists(st.sampled_from((0.0, 0.3, 0.8, 1.0)), min_size=1, max_size=4))
    drafted = len(chances)
    return {
        "survival": tuple(sorted(chances, reverse=True)),
        "mode": draw(st.sampled_from(("sampled", "sampled", "expected"))),
        "seed": draw(st.integers(0, 3)),
        "width": draw(st.sampled_from((1, 1, 2))),
        "lookahead": draw(st.sampled_from((0, drafted))),
        "disable_by_batch_size": draw(st.sampled_from((None, None, 2, 4))),
    }


@st.composite
def drafting_cases(draw: st.DrawFn) -> Case:
    """Draw an engine that speculates, and its load."""
    case = draw(cases("vllm_v1", "paged"))
    settings = {**case.settings, "long_prefill_token_threshold": 0}
    return replace(case, speculation=draw(speculations()), settings=settings)


@st.composite
def cases(
    draw: st.DrawFn,
    scheduler: str | None = None,
    allocator: str | None = None,
    hosts: st.SearchStrategy[Host] = st.just(Host()) | HOSTS,  # noqa: B008
) -> Case:
    """Draw an engine and its load."""
    scheduler = scheduler or draw(st.sampled_from(("vllm_v1", *policy_names("scheduler"))))
    allocator = allocator or draw(st.sampled_from(("paged", *policy_names("kvcache"))))
    block_size = draw(st.sampled_from((1, 4, 16)))
    policy = draw(st.sampled_from(("fcfs", "priority")))
    caching = draw(st.booleans())
    settings: dict[str, Any] = {
        "max_num_seqs": draw(st.integers(1, 10)),
        "max_num_batched_tokens": draw(st.integers(8, 80)),
        "enable_chunked_prefill": draw(st.booleans()),
        "long_prefill_token_threshold": draw(st.sampled_from((0, 0, 7))),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "watermark": draw(st.sampled_from((0.0, 0.0, 0.1))),
        "scheduling_policy": policy,
    }
    return Case(
        requests=draw(
            requests(
                stops=draw(st.booleans()),
                priorities=policy == "priority" or scheduler == "priority",
                classes=scheduler in ("deadline", "vtc"),
                shared=caching and draw(st.booleans()),
                block_size=block_size,
            )
        ),
        cost=draw(st.sampled_from(((STEP,), (STEP, 37), (STEP, 3, 211, 17, 5)))),
        scheduler=scheduler,
        allocator=allocator,
        num_blocks=draw(st.integers(100, 420)) // block_size,
        block_size=block_size,
        bounded_blocks=draw(st.sampled_from((0, 0, 1, 40 // block_size))),
        prefix_caching=caching,
        max_model_len=100,
        async_scheduling=find_policy("scheduler", scheduler, "").supports_async and draw(st.booleans()),
        needs_contexts=draw(st.booleans()),
        settings=settings,
        options=draw(OPTIONS.get(scheduler, st.just({}))),
        host=draw(hosts),
    )
