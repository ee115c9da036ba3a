"""Random cases in the form of the step logs: every policy, scarce memory, shared prefixes, stop tokens."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]


@st.composite
def cases(draw: st.DrawFn, *, prefix_caching: bool | None = None) -> Json:
    """Draw a case: a configuration, the cost of a step, and requests."""
    size = draw(st.integers(1, 32))
    asynchronous = draw(st.booleans())
    caching = draw(st.booleans()) if prefix_caching is None else prefix_caching
    policy = draw(st.sampled_from(("fcfs", "priority")))
    chunked = draw(st.sampled_from((True, True, False)))
    cost = draw(st.sampled_from(((1000, 0, 0), (4000, 25, 50), (100, 7, 1333))))
    requests = draw(loads(shared=caching, stops=asynchronous, priorities=policy == "priority", step=cost[0]))
    longest = max(_length(row) + row["output_len"] for row in requests)
    most = max(_length(row) + row["max_tokens"] for row in requests)
    every = sum(-(-(_length(row) + row["output_len"]) // size) for row in requests)
    scarcity = draw(st.sampled_from((0, 0, 1, 3, 10)))
    blocks = -(-longest // size) + draw(st.integers(0, max(every * scarcity // 10, 3)))
    return {
        "config": {
            "max_num_batched_tokens": draw(st.integers(1, 200)) + (0 if chunked else longest),
            "max_num_seqs": draw(st.integers(1, 16)),
            "num_gpu_blocks": 1 + blocks,
            "block_size": size,
            "enable_chunked_prefill": chunked,
            "enable_prefix_caching": caching,
            "policy": policy,
            "long_prefill_token_threshold": draw(st.sampled_from((0, 0, 1, 16, 40))),
            "scheduler_reserve_full_isl": draw(st.booleans()),
            "watermark": draw(st.sampled_from((0.0, 0.0, 0.01, 0.1, 0.3))),
            "max_model_len": draw(st.sampled_from((4096, most))),
            "async_scheduling": asynchronous,
        },
        "step_cost_us": dict(zip(("base", "per_token", "per_1000_context_tokens"), cost, strict=True)),
        "requests": requests,
    }


@st.composite
def loads(draw: st.DrawFn, *, shared: bool, stops: bool, priorities: bool, step: int) -> list[Json]:
    """Draw up to 30 requests; ``step`` is the time around which arrivals meet the ends of steps [us]."""
    gaps = draw(
        st.sampled_from(
            ((0, 0, step), (0, step, 3 * step, 1, step - 1, step + 1), (2 * step, 9 * step, 40 * step + 7))
        )
    )
    longest = draw(st.sampled_from((20, 90)))
    rows: list[Json] = []
    arrival = 0
    for number in range(draw(st.integers(1, 30))):
        arrival += draw(st.sampled_from(gaps))
        name = f"r{number:03d}"
        prompt = _head(draw, rows) if shared else []
        own = draw(st.integers(0 if prompt else 1, longest))
        output = draw(st.integers(1, longest))
        stop = stops and draw(st.booleans())
        rows.append(
            {
                "id": name,
                "arrival_us": arrival,
                "prompt": [*prompt, [name, own]] if own else prompt,
                "output_len": output,
                "max_tokens": output + (draw(st.integers(1, 30)) if stop else 0),
                "priority": draw(st.integers(0, 2)) if priorities else 0,
            }
        )
    return rows


def _head(draw: st.DrawFn, rows: list[Json]) -> list[list[Any]]:
    """Draw what a prompt shares with others: nothing, a system prompt, another prompt, or a conversation so far."""
    kind = draw(st.sampled_from(("none", "system", "same", "turn", "turn")))
    if kind == "system":
        return [[f"sys{draw(st.integers(0, 1))}", draw(st.sampled_from((16, 40, 57)))]]
    if kind == "none" or not rows:
        return []
    before = rows[draw(st.integers(max(0, len(rows) - 4), len(rows) - 1))]
    if kind == "same" or _length(before) > 300:
        return list(before["prompt"])
    return [*before["prompt"], [f"out:{before['id']}", before["output_len"]]]


def _length(row: Json) -> int:
    return sum(length for _, length in row["prompt"])
