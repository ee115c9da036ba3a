"""How many KV blocks an engine gets: the sum, its switches, overrides, refusals and monotonicity."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from membound.hwmodels.bareengine import BareEngine, parse_engine, rules_of
from membound.hwmodels.capacity import fit_reserve, kv_pool
from membound.hwmodels.device import list_devices, load_device
from membound.hwmodels.engine import list_engines, load_engine
from membound.hwmodels.errors import CapacityError
from membound.hwmodels.lowering import Parallelism
from membound.hwmodels.memorylog import PrintedMemory, parse_log
from membound.hwmodels.memoryrules import memory_rules
from membound.hwmodels.model import list_models, load_model
from membound.hwmodels.pool import KVPool, PoolSettings
from membound.hwmodels.sizing import size_report

GIB = 2**30
H100 = load_device("h100_sxm")
LLAMA = load_model("llama-3.1-8b")
VERSIONS = st.sampled_from(
    ["0.6.4", "0.6.6", "0.7.3", "0.8.5", "0.10.2", "0.12", "0.15.1", "0.19", "0.24", "0.33"]
)
GPUS = st.sampled_from([name for name in list_devices() if not name.startswith("tpu")])
PROPERTY = settings(deadline=None, max_examples=60)


def vllm(version: str) -> BareEngine:
    return BareEngine("vllm", version)


def pool(
    version: str = "0.24",
    model: str = "llama-3.1-8b",
    device: str = "h100_sxm",
    tp: int = 1,
    pp: int = 1,
    **given,
) -> KVPool:
    return kv_pool(
        load_device(device), vllm(version), load_model(model), Parallelism(tp, pp), PoolSettings(**given)
    )


def pool_or_refusal(*args: object, **given: object) -> KVPool | str:
    """Return the pool, or the text of the refusal."""
    try:
        return pool(*args, **given)
    except CapacityError as error:
        return str(error)


def blocks(*args: object, **given: object) -> int:
    """Return the blocks, or 0 where the model does not fit."""
    found = pool_or_refusal(*args, **given)
    return 0 if isinstance(found, str) else found.num_gpu_blocks


# kv-pool.md, worked example: Llama-3.1-8B on H100 SXM (total 79.19 GiB)
WORKED = [
    # version, utilization, max_num_seqs, budget, W, A, N, G, pool, blocks
    ("0.15", None, None, 71.27, 14.99, 4.77, 0.47, 0.00, 51.04, 26_132),
    ("0.15", None, 256, 71.27, 14.99, 1.29, 0.47, 0.00, 54.53, 27_917),
    ("0.23", 0.90, None, 71.27, 14.99, 2.08, 0.47, 0.56, 53.17, 27_223),
    ("0.23", None, None, 72.86, 14.99, 2.08, 0.47, 0.56, 54.75, 28_034),
]


@pytest.mark.parametrize(("version", "share", "seqs", "budget", "w", "a", "n", "g", "left", "count"), WORKED)
def test_the_worked_example_comes_out_term_by_term(
    version: str,
    share: float | None,
    seqs: int | None,
    budget: float,
    w: float,
    a: float,
    n: float,
    g: float,
    left: float,
    count: int,
) -> None:
    for engine in (vllm(version), load_engine(f"vllm-{version}")):
        given = PoolSettings(gpu_memory_utilization=share, max_num_seqs=seqs)
        found = kv_pool(H100, engine, LLAMA, settings=given)
        terms = {term.name: term.bytes / GIB for term in found.terms}
        assert found.budget_bytes / GIB == pytest.approx(budget, abs=0.0101)
        assert terms["weights"] == pytest.approx(w, abs=0.0051)
        assert terms["activations"] == pytest.approx(a, abs=0.0051)
        assert terms["non_torch"] == pytest.approx(n, abs=0.0051)
        assert terms.get("graphs", 0.0) == pytest.approx(g, abs=0.0051)
        assert found.kv_pool_bytes / GIB == pytest.approx(left, abs=0.0101)
        assert found.num_gpu_blocks == pytest.approx(count, rel=1e-4)
        assert found.usable_blocks == found.num_gpu_blocks - 1


def test_the_sampler_usually_wins_over_the_forward_pass() -> None:
    # 38 x 1,024 x 128,256 + 4 x 8,192 x 4,096 B against a forward pass of 0.844 GiB
    term = next(t for t in pool("0.15").terms if t.name == "activations")
    assert term.bytes == 38 * 1024 * 128_256 + 4 * 8192 * 4096
    assert "sampling 1,024 rows" in term.note
    term = next(t for t in pool("0.15", max_num_seqs=8).terms if t.name == "activations")
    assert term.bytes / GIB == pytest.approx(0.844, abs=5e-4)
    assert "forward" in term.note


def test_every_term_says_where_it_comes_from() -> None:
    found = pool("0.24")
    assert {t.name: t.source for t in found.terms} == {
        "weights": "formula",
        "activations": "formula",
        "non_torch": "constant",
        "graphs": "constant",
    }
    assert all(t.note for t in found.terms)
    assert found.budget_bytes - sum(t.bytes for t in found.terms) == found.kv_pool_bytes


@pytest.mark.parametrize(
    ("version", "field", "value"),
    [
        ("0.6.4", "counts_context", True),
        ("0.6.5", "counts_context", False),
        ("0.7.0", "latent_expanded", True),
        ("0.7.1", "latent_expanded", False),
        ("0.7.3", "sampler_bytes", 0),
        ("0.8.0", "sampler_bytes", 38),
        ("0.17.1", "sampler_bytes", 38),
        ("0.18.0", "sampler_bytes", 16),
        ("0.7.3", "null_blocks", 0),
        ("0.8.0", "null_blocks", 1),
        ("0.10.2", "nccl_gib", {"nvlink": 2.05, "pcie": 0.44}),
        ("0.11.0", "nccl_gib", {}),
        ("0.17.1", "graph_gib", 0),
        ("0.18.0", "graph_gib", 0.56),
        ("0.19.1", "gpu_memory_utilization", 0.90),
        ("0.20.0", "gpu_memory_utilization", 0.92),
        ("0.20.0", "token_line", "blocks"),
        ("0.21.0", "token_line", "concurrency"),
    ],
)
def test_a_version_switch_turns_where_the_engine_turned_it(version: str, field: str, value: object) -> None:
    assert getattr(memory_rules(version), field) == value


@pytest.mark.parametrize("name", [e for e in list_engines() if e.startswith("vllm")])
def test_profiles_and_version_rules_agree(name: str) -> None:
    profile = load_engine(name)
    ruled, plain = rules_of(profile), memory_rules(profile.version)
    for field in (
        "sampler_bytes",
        "small_sampler_bytes",
        "graph_gib",
        "nccl_gib",
        "null_blocks",
        "dense_gib",
    ):
        assert getattr(ruled, field) == getattr(plain, field)
    defaults = profile.resolve_defaults(load_device("a100_sxm_80gb"))
    bare = vllm(profile.version).resolve_defaults(load_device("a100_sxm_80gb"))
    assert (defaults.max_num_seqs, defaults.max_num_batched_tokens) == (256, 2048)
    assert (bare.max_num_seqs, bare.max_num_batched_tokens) == (256, 2048)
    assert bare.gpu_memory_utilization == defaults.gpu_memory_utilization


def test_fewer_than_128_rows_take_another_path_of_the_sort() -> None:
    assert memory_rules("0.15").sampler_bytes_per_entry(128) == 38
    assert memory_rules("0.15").sampler_bytes_per_entry(127) == 50
    assert memory_rules("0.24").sampler_bytes_per_entry(1) == 16
    assert memory_rules("0.15", flashinfer_sampler=True).sampler_bytes_per_entry(1024) == 16


def test_a_rotary_table_larger_than_the_sampler_is_the_peak_where_the_compiler_times_kernels() -> None:
    # 10,485,760 positions x 128 x 2 B = 2.5 GiB, copied once; read in vLLM 0.11.2 to 0.23
    scout = {
        "model": "llama-4-scout-fp8-dynamic",
        "tp": 2,
        "max_num_seqs": 128,
        "max_num_batched_tokens": 2048,
    }
    timed = pool("0.15", **scout)
    term = next(t for t in timed.terms if t.name == "activations")
    assert term.bytes == 10_485_760 * 128 * 2
    assert "rotary table" in term.note
    for other in (pool("0.11.0", **scout), pool("0.15", enforce_eager=True, **scout)):
        assert other.term_bytes("activations") < term.bytes
    assert "sampling" in next(t for t in pool("0.15").terms if t.name == "activations").note


def test_the_experts_workspace_stays_beside_the_sampler() -> None:
    # Mixtral on two ranks: 8,192 tokens x 2 experts x (7,168 + 14,336) elements of 2 B
    before, after = (pool(v, "mixtral-8x7b", tp=2).term_bytes("activations") for v in ("0.11.0", "0.15"))
    assert after - before == 8192 * 2 * (7168 + 14_336) * 2
    assert (
        "workspace"
        in next(t for t in pool("0.15", "mixtral-8x7b", tp=2).terms if t.name == "activations").note
    )


def test_communicators_count_before_0_11_and_only_with_several_ranks() -> None:
    def names(version: str, tp: int, device: str = "h100_sxm") -> dict[str, float]:
        return {t.name: t.bytes / GIB for t in pool(version, tp=tp, device=device).terms}

    assert names("0.10.2", 2)["nccl"] == pytest.approx(2.05)
    assert names("0.10.2", 2, "l40s")["nccl"] == pytest.approx(0.44)
    assert "nccl" not in names("0.10.2", 1)
    assert "nccl" not in names("0.11", 2)


def test_eager_engines_take_nothing_for_graphs() -> None:
    assert pool(enforce_eager=True).kv_pool_bytes - pool().kv_pool_bytes == int(0.56 * GIB)


def test_v0_profiles_a_whole_prompt_unless_it_chunks() -> None:
    chunked = pool("0.7.3", max_num_batched_tokens=2048, max_model_len=32_768, enable_chunked_prefill=True)
    whole = pool("0.7.3", max_num_batched_tokens=2048, max_model_len=32_768, enable_chunked_prefill=False)
    assert whole.term_bytes("activations") == 16 * chunked.term_bytes("activations")


def test_v0_chunks_by_itself_only_beyond_32k() -> None:
    short, long = (pool("0.7.3", max_model_len=n).term_bytes("activations") for n in (32_768, 32_769))
    assert short == 16 * long
    assert vllm("0.6.4").resolve_defaults(H100).max_num_batched_tokens == 512


def test_v0_splits_the_pool_over_the_stages_of_a_pipeline() -> None:
    early = pool("0.7.3", pp=2, num_gpu_blocks_override=1650)
    assert early.longest(1650) == 13_200
    assert pool("0.24", pp=2, num_gpu_blocks_override=1650).longest(1650) == 26_400


def test_the_block_count_is_the_smallest_over_all_stages() -> None:
    found = pool("0.24", model="llama-3.1-70b", tp=2, pp=2, pipeline_partition=(20, 60))
    counts = [stage.blocks for stage in found.stages]
    assert found.num_gpu_blocks == min(counts) < max(counts)
    assert [stage.layers for stage in found.stages] == [20, 60]


def test_only_the_last_stage_of_a_pipeline_samples() -> None:
    first, last = pool("0.15", pp=2).stages
    assert first.terms[1].bytes < last.terms[1].bytes


@pytest.mark.parametrize(
    ("model", "device", "tokens"),
    [
        ("deepseek-v2-lite", "h100_sxm", 64),
        ("deepseek-v2-lite", "b200_sxm", 128),
        ("llama-3.1-8b", "b200_sxm", 16),
    ],
)
def test_the_default_block_is_what_the_kernel_wants(model: str, device: str, tokens: int) -> None:
    assert pool(model=model, device=device).block_size == tokens


# overrides, in order


def test_printed_blocks_win_over_printed_bytes_and_those_over_printed_terms() -> None:
    terms = PrintedMemory(weights_bytes=20 * GIB)
    assert pool(printed=terms).term_bytes("weights") == 20 * GIB
    assert pool(printed=terms).blocks_source == "formula"
    size = replace(terms, kv_bytes=40 * GIB)
    assert pool(printed=size).num_gpu_blocks == 40 * 512
    assert pool(printed=size).blocks_source == "printed"
    count = replace(size, num_gpu_blocks=1000)
    assert pool(printed=count).num_gpu_blocks == 1000
    assert pool(printed=count).blocks_range == (1000, 1000)
    assert pool(printed=replace(size, kv_tokens=16_000)).num_gpu_blocks == 1000


def test_what_is_set_wins_over_what_is_printed() -> None:
    printed = PrintedMemory(num_gpu_blocks=1000)
    found = pool(printed=printed, num_gpu_blocks_override=500)
    assert (found.num_gpu_blocks, found.blocks_source) == (500, "setting")
    assert found.kv_capacity_tokens == 8000


def test_pool_bytes_that_are_set_make_utilization_irrelevant() -> None:
    sizes = {
        pool(kv_cache_memory_bytes=10 * GIB, gpu_memory_utilization=share).num_gpu_blocks
        for share in (0.3, 0.92)
    }
    assert sizes == {5120}
    with pytest.raises(CapacityError, match=r"allowed: vLLM 0\.11 and later"):
        pool("0.10.2", kv_cache_memory_bytes=10 * GIB)


def test_more_blocks_than_fit_are_warned_about() -> None:
    assert any("more than the 28,034" in w for w in pool("0.23", num_gpu_blocks_override=40_000).warnings)


def test_one_printed_line_calibrates_a_host_for_other_settings() -> None:
    # the same machine with another reserve: what it printed comes back, and moves with the settings
    true = pool("0.15", reserve_bytes=int(1.3 * GIB))
    log = parse_log(f"Available KV cache memory: {true.kv_pool_bytes / GIB:.2f} GiB")
    reserve = fit_reserve(H100, vllm("0.15"), LLAMA, log)
    assert reserve / GIB == pytest.approx(1.3, abs=0.006)
    other = pool("0.15", reserve_bytes=reserve, max_num_seqs=256)
    assert other.num_gpu_blocks == pytest.approx(
        pool("0.15", reserve_bytes=int(1.3 * GIB), max_num_seqs=256).num_gpu_blocks, rel=1e-3
    )
    assert other.uncertainty_bytes < pool("0.15", max_num_seqs=256).uncertainty_bytes
    by_blocks = fit_reserve(H100, vllm("0.15"), LLAMA, PrintedMemory(num_gpu_blocks=true.num_gpu_blocks))
    assert by_blocks / GIB == pytest.approx(1.3, abs=0.003)


def test_a_log_that_cannot_be_of_this_host_is_refused() -> None:
    with pytest.raises(CapacityError, match=r"more than the .* GiB left after"):
        fit_reserve(H100, vllm("0.15"), LLAMA, PrintedMemory(kv_bytes=70 * GIB))
    with pytest.raises(CapacityError, match="names no pool"):
        fit_reserve(H100, vllm("0.15"), LLAMA, PrintedMemory(weights_bytes=15 * GIB))


# ranges and warnings


def test_the_range_is_wider_where_less_was_checked() -> None:
    def half(version: str, model: str) -> float:
        return pool(version, model, tp=2).uncertainty_bytes / GIB

    assert half("0.15", "llama-3.1-8b") == pytest.approx(0.4)
    assert half("0.24", "llama-3.1-8b") == pytest.approx(1.0)
    for model in ("mixtral-8x7b", "deepseek-v2-lite", "gemma-3-4b"):
        assert half("0.24", model) == pytest.approx(2.0)


def test_blocks_come_as_a_range_around_the_estimate() -> None:
    found = pool("0.15")
    low, high = found.blocks_range
    # 0.4 GiB of 2 MiB blocks
    assert (found.num_gpu_blocks - low, high - found.num_gpu_blocks) == (204, 204)


def test_a_pool_below_one_full_request_is_warned_about_with_the_length_that_fits() -> None:
    found = pool(device="rtx_4090", model="llama-3.1-8b")
    assert not found.fits
    assert found.largest_max_model_len < found.max_model_len == 131_072
    message = next(w for w in found.warnings if "does not hold one request" in w)
    assert f"largest max_model_len that fits: {found.largest_max_model_len:,}" in message
    shorter = pool(device="rtx_4090", max_model_len=found.largest_max_model_len)
    assert shorter.fits
    assert any("low end of the range" in w for w in shorter.warnings)
    assert not pool(device="rtx_4090", max_model_len=8192).warnings


def test_memory_outside_the_budget_is_checked_against_the_card() -> None:
    assert any("out-of-memory" in w for w in pool("0.15", gpu_memory_utilization=0.99).warnings)
    assert not any("out-of-memory" in w for w in pool("0.15").warnings)


def test_capacity_speaks_the_engines_words() -> None:
    found = pool("0.24", max_model_len=8192)
    assert found.kv_capacity_tokens == found.num_gpu_blocks * 16
    assert found.max_concurrency == found.num_gpu_blocks / 512
    hybrid = pool("0.24", "gemma-3-12b", max_model_len=32_768)
    assert hybrid.kv_capacity_tokens == int(hybrid.max_concurrency * 32_768)


# refusals


def test_a_model_that_does_not_fit_is_refused_with_the_sum_and_what_would_fit() -> None:
    with pytest.raises(CapacityError) as caught:
        pool("0.24", "llama-3.1-70b")
    text = str(caught.value)
    assert "\n" not in text
    assert "weights 131.45 + activations 2.21 + non_torch 0.47 + graphs 0.56 = 134.68 GiB" in text
    assert "budget of 72.85 GiB (0.92 x 79.19)" in text
    assert "fits with tensor_parallel_size 2 or quantization.weights fp8" in text


def test_too_little_utilization_names_the_one_that_fits() -> None:
    with pytest.raises(CapacityError, match=r"fits with gpu_memory_utilization 0\.23 or") as caught:
        pool("0.24", gpu_memory_utilization=0.15)
    assert "weights 14.99" in str(caught.value)
    assert blocks("0.24", gpu_memory_utilization=0.23) > 1
    assert blocks("0.24", gpu_memory_utilization=0.22) == 0


def test_a_batch_too_large_names_the_largest_that_fits() -> None:
    with pytest.raises(CapacityError, match="max_num_seqs 512") as caught:
        pool("0.15", device="a10", max_num_seqs=1024, gpu_memory_utilization=0.85)
    assert "max_num_batched_tokens" in str(caught.value)
    assert blocks("0.15", device="a10", max_num_seqs=512, gpu_memory_utilization=0.85) > 1


def test_nothing_fits_a_trillion_parameters_on_a_small_card() -> None:
    with pytest.raises(CapacityError, match="no single setting of the engine makes it fit"):
        pool("0.24", "kimi-k2", device="rtx_4090")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gpu_memory_utilization": 90}, "gpu_memory_utilization is 90; allowed: above 0, at most 1"),
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization is 0"),
        ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization is nan"),
        ({"max_num_seqs": 0}, "scheduler.max_num_seqs is 0; allowed: 1 or more"),
        ({"max_model_len": -1}, "kv_cache.max_model_len is -1"),
        ({"block_size": 0}, "kv_cache.block_size is 0"),
        ({"num_gpu_blocks_override": 0}, "num_gpu_blocks_override is 0"),
        ({"kv_cache_memory_bytes": 1000}, "kv_cache_memory_bytes 0.00 GiB is less than one block"),
        (
            {"tp": 3},
            "tensor_parallel_size is 3, which does not divide the 32 query heads.*nearest that does: [24]",
        ),
        ({"tp": 0}, "tensor_parallel_size is 0; allowed: 1 or more"),
        ({"pp": 33}, "pipeline_parallel_size is 33; allowed: 1 to 32"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(given: dict[str, object], message: str) -> None:
    with pytest.raises(CapacityError, match=message) as caught:
        pool(**given)
    assert "\n" not in str(caught.value)


def test_an_engine_without_rules_is_refused_with_the_nearest() -> None:
    with pytest.raises(CapacityError, match=r"unknown engine 'vlm'; nearest: 'vllm'"):
        kv_pool(H100, BareEngine("vlm", "0.24"), LLAMA)
    with pytest.raises(CapacityError, match="has no number"):
        memory_rules("nightly")
    with pytest.raises(CapacityError, match="no name and version"):
        parse_engine("vllm")
    assert parse_engine("vLLM v0.8.5.post1") == BareEngine("vllm", "0.8.5.post1")


# monotonicity


@PROPERTY
@given(VERSIONS, GPUS, st.sampled_from(list_models()), st.floats(0.05, 0.98), st.floats(0.05, 0.98))
def test_more_utilization_never_gives_fewer_blocks(
    version: str, device: str, model: str, a: float, b: float
) -> None:
    low, high = sorted((a, b))
    assert (
        0
        <= blocks(version, model, device, gpu_memory_utilization=low)
        <= blocks(version, model, device, gpu_memory_utilization=high)
    )


@PROPERTY
@given(VERSIONS, GPUS, st.sampled_from(list_models()), st.integers(1, 4096), st.integers(1, 4096))
def test_more_sequences_never_give_more_blocks(version: str, device: str, model: str, a: int, b: int) -> None:
    few, many = sorted((a, b))
    # Below 128 rows the sort takes 50 B an entry instead of 38: two laws, each monotone.
    assume(not (few < 128 <= many))
    assert blocks(version, model, device, max_num_seqs=few) >= blocks(
        version, model, device, max_num_seqs=many
    )


@PROPERTY
@given(VERSIONS, GPUS, st.sampled_from(list_models()), st.integers(1, 32_768), st.integers(1, 32_768))
def test_more_tokens_a_step_never_give_more_blocks(
    version: str, device: str, model: str, a: int, b: int
) -> None:
    few, many = sorted((a, b))
    given = {"max_num_seqs": 1, "max_model_len": 4096}
    assert blocks(version, model, device, max_num_batched_tokens=few, **given) >= blocks(
        version, model, device, max_num_batched_tokens=many, **given
    )


@PROPERTY
@given(
    GPUS,
    st.sampled_from(list_models()),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["0.12", "0.15.1", "0.24"]),
)
def test_more_ranks_never_give_fewer_blocks(device: str, model: str, tp: int, version: str) -> None:
    heads = [
        m.n_heads
        for _, m in load_model(model).mixers()
        if hasattr(m, "index_head_dim") or hasattr(m, "window")
    ]
    assume(all(n % (2 * tp) == 0 for n in heads))
    assert blocks(version, model, device, tp) <= blocks(version, model, device, 2 * tp)


@PROPERTY
@given(VERSIONS, GPUS, st.sampled_from(list_models()), st.sampled_from([1, 2, 8]), st.integers(1, 1 << 20))
def test_a_pool_is_whole_blocks_that_fit_and_no_more(
    version: str, device: str, model: str, tp: int, length: int
) -> None:
    found = pool_or_refusal(version, model, device, tp, max_model_len=length)
    if isinstance(found, str):
        assert "\n" not in found
        return
    stage = found.tightest
    assert found.num_gpu_blocks * stage.bytes_per_block <= stage.pool_bytes
    assert stage.pool_bytes < (found.num_gpu_blocks + 1) * stage.bytes_per_block
    assert sum(t.bytes for t in stage.terms) + stage.pool_bytes == found.budget_bytes <= found.total_bytes
    low, high = found.blocks_range
    assert 0 <= low <= found.num_gpu_blocks <= high
    assert found.fits == (found.request_blocks <= found.usable_blocks // found.split)
    assert any("does not hold one request" in w for w in found.warnings) != found.fits


@PROPERTY
@given(GPUS, st.sampled_from(list_models()), st.sampled_from(["0.15", "0.24"]))
def test_advice_that_is_given_works(device: str, model: str, version: str) -> None:
    text = pool_or_refusal(version, model, device)
    if not isinstance(text, str) or "fits with" not in text:
        return
    for part in text.split("fits with ")[1].split(" or "):
        name, value = part.split(" ")
        if name == "tensor_parallel_size":
            assert blocks(version, model, device, int(value)) > 1
        elif name == "quantization.weights":
            assert blocks(version, model, device, weights=value) > 1
        else:
            number = float(value) if "." in value else int(value)
            assert blocks(version, model, device, **{name: number}) > 1


# other engines


def test_sglang_takes_a_static_share_and_ignores_batch_and_vocabulary() -> None:
    engine = load_engine("sglang-0.5.6")
    found = kv_pool(H100, engine, LLAMA, settings=PoolSettings(gpu_memory_utilization=0.9))
    free = 79.19 - 0.35
    assert found.kv_pool_bytes / GIB == pytest.approx(0.9 * free - 14.989, abs=0.01)
    assert [t.name for t in found.terms] == ["weights"]
    again = kv_pool(H100, engine, LLAMA, settings=PoolSettings(gpu_memory_utilization=0.9, max_num_seqs=8))
    assert again.num_gpu_blocks == found.num_gpu_blocks
    # (81,640 - max(512 + 1.5 x 8,192 + 2 x 256 + 128, 10,240)) / 81,640
    assert kv_pool(H100, engine, LLAMA).gpu_memory_utilization == pytest.approx(0.835)
    assert found.block_size == 1


def test_tensorrt_llm_takes_a_share_of_what_is_left() -> None:
    engine = load_engine("tensorrt-llm-1.0")
    found = kv_pool(H100, engine, LLAMA)
    left = found.total_bytes - sum(t.bytes for t in found.terms)
    assert found.kv_pool_bytes == int(0.9 * left)
    assert found.block_size == 32


@pytest.mark.parametrize("engine", ["sglang-0.5.6", "tensorrt-llm-1.0"])
def test_other_engines_say_that_their_rules_are_unchecked_and_refuse_what_does_not_fit(engine: str) -> None:
    found = kv_pool(H100, load_engine(engine), LLAMA)
    assert any("not validated" in w for w in found.warnings)
    assert found.uncertainty_bytes >= 2 * GIB
    with pytest.raises(CapacityError, match=r"does not fit h100_sxm under .*weights 131.45"):
        kv_pool(H100, load_engine(engine), load_model("llama-3.1-70b"))
    printed = parse_log("KV Cache is allocated. #tokens: 64000, K size: 4.00 GB, V size: 4.00 GB")
    known = kv_pool(H100, load_engine(engine), LLAMA, settings=PoolSettings(printed=printed))
    assert known.kv_capacity_tokens == 64_000


# logs and the report


V0_LOG = """
the current vLLM instance can use total_gpu_memory (79.10GiB) x gpu_memory_utilization (0.90) = 71.19GiB
model weights take 29.30GiB; non_torch_memory takes 5.21GiB; PyTorch activation peak memory takes 1.27GiB; the
rest of the memory reserved for KV Cache is 35.42GiB.
# GPU blocks: 5373, # CPU blocks: 606
Maximum concurrency for 8192 tokens per request: 10.49x
"""
V1_LOG = """
(Worker_TP0 pid=1) INFO Model loading took 14.25 GiB memory and 3.1 seconds
(Worker_TP1 pid=2) INFO Model loading took 14.31 GiB memory and 3.2 seconds
INFO Overriding num_gpu_blocks=0 with num_gpu_blocks_override=512
(Worker_TP0 pid=1) INFO Estimated CUDA graph memory: 1.58 GiB total
(Worker_TP0 pid=1) INFO Available KV cache memory: 20.27 GiB
(Worker_TP1 pid=2) INFO Available KV cache memory: 20.11 GiB
(EngineCore pid=3) INFO GPU KV cache size: 331,584 tokens
(EngineCore pid=3) INFO Maximum concurrency for 65,536 tokens per request: 5.06x
"""


def test_an_early_log_gives_every_term() -> None:
    found = parse_log(V0_LOG)
    assert (found.num_gpu_blocks, found.max_concurrency, found.concurrency_length) == (5373, 10.49, 8192)
    sizes = (
        found.total_bytes,
        found.weights_bytes,
        found.non_torch_bytes,
        found.activation_bytes,
        found.kv_bytes,
    )
    assert [round(size / GIB, 2) for size in sizes if size] == [79.10, 29.30, 5.21, 1.27, 35.42]
    assert found.gpu_memory_utilization == 0.90
    assert not found.warnings


def test_of_several_ranks_the_tightest_counts() -> None:
    found = parse_log(V1_LOG)
    assert found.weights_bytes == round(14.31 * GIB)
    assert found.kv_bytes == round(20.11 * GIB)
    assert found.graph_bytes == round(1.58 * GIB)
    assert found.kv_tokens == 331_584
    assert found.num_gpu_blocks is None


def test_a_refusal_gives_the_bytes_of_a_token() -> None:
    found = parse_log(
        "To serve at least one request with the models's max seq len (1048576), (24.00 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (9.97 GiB). Based on the available "
        "memory, the estimated maximum model length is 435584."
    )
    assert found.kv_bytes_per_token == 24_576
    assert (found.needed_length, found.estimated_max_model_len) == (1_048_576, 435_584)


def test_a_log_whose_figures_must_not_be_divided_says_so() -> None:
    hybrid = parse_log(
        "Available KV cache memory: 51.62 GiB\nGPU KV cache size: 451,040 tokens\n"
        "Maximum concurrency for 131,072 tokens per request: 33.42x"
    )
    assert "fixed + slope x length" in hybrid.warnings[0]
    plain = parse_log("Available KV cache memory: 7.28 GiB\nGPU KV cache size: 82,000 tokens")
    assert "concurrency x max_model_len" in plain.warnings[0]


def test_a_log_without_memory_lines_is_refused() -> None:
    with pytest.raises(CapacityError, match="no line about memory"):
        parse_log("INFO: Application startup complete.")


@given(st.text(max_size=400))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(CapacityError):
        parse_log(text)


def test_tokens_of_a_hybrid_log_turn_into_blocks_by_the_version() -> None:
    # blocks / groups x block size to 0.20; concurrency x length from 0.21 on
    given = {"kv_cache_dtype": "fp8", "max_num_batched_tokens": 2048, "max_model_len": 131_072}
    old = pool("0.19", "gemma-4-26b-a4b", printed=PrintedMemory(kv_tokens=451_040), **given)
    assert old.num_gpu_blocks == 451_040 // 16 * 6
    assert old.max_concurrency == pytest.approx(33.42, rel=1e-3)
    new = pool("0.24", "gemma-4-26b-a4b", printed=PrintedMemory(kv_tokens=int(33.42 * 131_072)), **given)
    assert new.max_concurrency == pytest.approx(33.42, rel=1e-3)


def test_the_size_report_has_the_keys_other_programs_rely_on() -> None:
    report = size_report(
        H100, load_engine("vllm-0.24"), LLAMA, Parallelism(2, 2), PoolSettings(max_model_len=8192)
    )
    found = report.to_json()
    assert {"memory", "per_request_kv", "shards", "largest_max_model_len"} <= set(found)
    memory = found["memory"]
    assert isinstance(memory, dict)
    assert {
        "weights_bytes", "activation_bytes", "reserve_bytes", "kv_pool_bytes", "kv_bytes_per_token",
        "num_gpu_blocks", "kv_capacity_tokens", "max_concurrency_at_max_model_len", "fits",
    } <= set(memory)  # fmt: skip
    spent = memory["weights_bytes"] + memory["activation_bytes"] + memory["reserve_bytes"]
    assert spent + memory["kv_pool_bytes"] == memory["budget_bytes"]
    assert memory["fits"] is True
    assert memory["kv_bytes_per_token"] == 65_536
    assert found["per_request_kv"] == {"fixed_bytes": 0, "bytes_per_token": 65_536}
    assert [shard["layers"] for shard in found["shards"]] == [16, 16]
    assert found["largest_max_model_len"] == 131_072


def test_per_request_kv_of_a_hybrid_model_is_fixed_plus_slope() -> None:
    found = size_report(
        H100,
        load_engine("vllm-0.24"),
        load_model("gemma-4-26b-a4b"),
        settings=PoolSettings(kv_cache_dtype="fp8"),
    ).to_json()["per_request_kv"]
    # five full layers of 2 x 2 x 512 B; five groups of ceil((1,023 + 8,192) / 16) + 1 blocks of 320 KiB
    assert found == {"fixed_bytes": 5 * 577 * 327_680, "bytes_per_token": 10_240}


@pytest.mark.parametrize("device", list_devices())
@pytest.mark.parametrize("engine", ["vllm-0.12", "vllm-0.32", "sglang-0.5.6", "tensorrt-llm-1.0"])
def test_every_device_is_sized_or_refused(device: str, engine: str) -> None:
    for model in ("llama-3.2-1b", "mixtral-8x7b", "qwen3.5-27b"):
        try:
            count = kv_pool(load_device(device), load_engine(engine), load_model(model)).num_gpu_blocks
        except CapacityError as error:
            if "does not fit" not in str(error):
                raise
        else:
            assert count > 0


def test_naive_attention_keeps_its_scores_and_runs_out_of_memory_at_long_prompts() -> None:
    """Six bytes a head, query and key: 192 GiB for 8,192 queries of 131,072 keys, where flash keeps a tile."""
    naive = PoolSettings(attention="naive", max_num_batched_tokens=8192, max_model_len=8192)
    flash = replace(naive, attention="flash")
    engine = load_engine("vllm-0.24")
    short, plain = (kv_pool(H100, engine, LLAMA, None, settings) for settings in (naive, flash))
    scores = 6 * 32 * 8192 * 8192
    assert short.num_gpu_blocks < plain.num_gpu_blocks
    assert (plain.tightest.pool_bytes - short.tightest.pool_bytes) == pytest.approx(scores, rel=0.2)
    with pytest.raises(
        CapacityError, match=r"activations 192\.\d+ .* max_model_len 32768 or kernels\.attention flash"
    ):
        kv_pool(H100, engine, LLAMA, None, replace(naive, max_model_len=131_072))
    assert kv_pool(H100, engine, LLAMA, None, replace(flash, max_model_len=131_072)).num_gpu_blocks > 0


def test_naive_attention_s_scores_are_dealt_out_with_the_heads() -> None:
    naive = PoolSettings(attention="naive", max_num_batched_tokens=2048, max_model_len=32_768)
    engine = load_engine("vllm-0.24")

    def activations(tp: int) -> int:
        pool = kv_pool(H100, engine, LLAMA, Parallelism(tp), naive)
        return next(term.bytes for term in pool.tightest.terms if term.name == "activations")

    assert activations(1) / activations(4) == pytest.approx(4, rel=0.1)


def test_naive_attention_is_sized_for_vllm_alone() -> None:
    with pytest.raises(CapacityError, match=r"kernels\.attention: .* allowed: vLLM engines, or flash"):
        kv_pool(H100, load_engine("sglang-0.5.6"), LLAMA, None, PoolSettings(attention="naive"))
