"""A pasted log: what each engine prints, the error of the formula, and the rest that a host keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from membound.hwmodels.bareengine import BareEngine
from membound.hwmodels.capacity import kv_pool
from membound.hwmodels.device import load_device
from membound.hwmodels.errors import CapacityError
from membound.hwmodels.hostlog import HostLog, read_host
from membound.hwmodels.lowering import Parallelism
from membound.hwmodels.memorylog import PrintedMemory, parse_log
from membound.hwmodels.model import load_model
from membound.hwmodels.pool import PoolSettings

GIB = 2**30
H100, LLAMA = load_device("h100_sxm"), load_model("llama-3.1-8b")

V1 = """\
(EngineCore pid=15) INFO 08:33:42 [gpu_model_runner.py:4216] Model loading took 15.02 GiB memory and 9.4 seconds
(EngineCore pid=15) INFO 08:34:25 [gpu_worker.py:360] Available KV cache memory: 50.48 GiB
(EngineCore pid=15) INFO 08:34:25 [kv_cache_utils.py:1307] GPU KV cache size: 413,520 tokens
(EngineCore pid=15) INFO 08:34:25 [kv_cache_utils.py:1312] Maximum concurrency for 32,768 tokens per request: 12.62x
(EngineCore pid=15) INFO 08:34:31 [gpu_model_runner.py:6243] Graph capturing finished in 2 secs, took 0.61 GiB
"""
V0 = """\
INFO [worker.py:267] the current vLLM instance can use \
total_gpu_memory (79.19GiB) x gpu_memory_utilization (0.90) = 71.27GiB
INFO [worker.py:267] model weights take 12.55GiB; non_torch_memory takes 0.16GiB; \
PyTorch activation peak memory takes 2.38GiB; the rest of the memory reserved for KV Cache is 56.18GiB.
INFO 03-21 20:15:46 [executor_base.py:111] # cuda blocks: 7191, # CPU blocks: 512
"""
SGLANG = """\
[TP0] Load weight end. type=Qwen3MoeForCausalLM, dtype=torch.bfloat16, avail mem=22.10 GB, mem usage=55.36 GB.
[TP0] KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB
[TP0] Capture cuda graph end. Time elapsed: 7.13 s. mem usage=1.72 GB. avail mem=3.59 GB.
[TP0] max_total_num_tokens=367404, chunked_prefill_size=8192, max_running_requests=2871, context_len=40960
"""


def host(text: str, version: str = "0.15", settings: PoolSettings | None = None) -> HostLog:
    return read_host(H100, BareEngine("vllm", version), LLAMA, parse_log(text), None, settings)


def errors(log: HostLog) -> dict[str, float]:
    return {f"{f.name}, {f.unit}": f.error for f in log.figures if f.error is not None}


def test_every_line_of_a_start_of_vllm_is_read() -> None:
    assert parse_log(V1) == replace(
        PrintedMemory(
            weights_bytes=round(15.02 * GIB),
            kv_bytes=round(50.48 * GIB),
            kv_tokens=413_520,
            concurrency_length=32_768,
            max_concurrency=12.62,
            captured_bytes=round(0.61 * GIB),
        ),
        warnings=parse_log(V1).warnings,
    )
    old = parse_log(V0)
    assert (old.num_gpu_blocks, old.gpu_memory_utilization) == (7191, 0.9)
    assert old.non_torch_bytes == round(0.16 * GIB)


def test_lines_of_sglang_are_read() -> None:
    found = parse_log(SGLANG)
    assert found.kv_tokens == 367_404
    assert found.kv_bytes == round(16.46 * GIB)
    assert found.weights_bytes == round(55.36 * GIB)
    assert found.captured_bytes == round(1.72 * GIB)


def test_the_tightest_rank_counts_and_the_largest_term() -> None:
    ranks = "Available KV cache memory: 7.3 GiB\nAvailable KV cache memory: 7.1 GiB\n"
    ranks += "Model loading took 5.1 GiB\nModel loading took 5.3 GiB"
    found = parse_log(ranks)
    assert (found.kv_bytes, found.weights_bytes) == (round(7.1 * GIB), round(5.3 * GIB))


def test_each_printed_figure_stands_beside_the_formula_with_its_error() -> None:
    found = errors(host(V1))
    pool = kv_pool(H100, BareEngine("vllm", "0.15"), LLAMA, settings=PoolSettings(max_model_len=32_768))
    assert found["KV cache, tokens"] == pytest.approx(pool.kv_capacity_tokens / 413_520 - 1)
    assert found["KV memory, GiB"] == pytest.approx(pool.kv_pool_bytes / (50.48 * GIB) - 1, abs=1e-6)
    # the length that the log's concurrency is for
    assert found["concurrency, requests"] == pytest.approx(pool.max_concurrency / 12.62 - 1)
    assert found["weights, GiB"] == pytest.approx(14.99 / 15.02 - 1, abs=5e-4)
    # outside the budget before 0.18: no formula to err
    assert "graphs, captured, GiB" not in found


def test_the_rest_of_a_host_comes_back_out_of_its_own_log() -> None:
    log = host(V1)
    assert log.rest_formula_bytes == int(0.47 * GIB)
    assert log.rest_bytes is not None
    kept = PoolSettings(reserve_bytes=log.rest_bytes, printed=PrintedMemory(weights_bytes=round(15.02 * GIB)))
    again = kv_pool(H100, BareEngine("vllm", "0.15"), LLAMA, settings=kept)
    assert again.kv_capacity_tokens == pytest.approx(413_520, rel=3e-4)


def test_a_log_that_prints_its_terms_leaves_the_rest_it_printed() -> None:
    found = read_host(H100, BareEngine("vllm", "0.8.2"), load_model("llama-2-7b"), parse_log(V0))
    assert found.rest_bytes is not None
    assert found.rest_bytes / GIB == pytest.approx(0.16, abs=0.02)


def test_a_pool_that_was_set_does_not_hide_the_formula() -> None:
    given = PoolSettings(num_gpu_blocks_override=1000)
    assert errors(host(V1, settings=given)) == errors(host(V1))
    assert host(V1, settings=given).rest_bytes == host(V1).rest_bytes


def test_what_stands_in_the_way_is_a_note_not_an_error() -> None:
    other = host("Available KV cache memory: 70.0 GiB")
    assert other.rest_bytes is None
    assert "more than the" in other.notes[0]
    large = read_host(
        load_device("rtx_4090"), BareEngine("vllm", "0.15"), load_model("llama-3.1-70b"), parse_log(V1)
    )
    assert large.notes[0].startswith("without the log: llama-3.1-70b does not fit")
    assert all(figure.formula is None or figure.name == "total memory" for figure in large.figures)


def test_windows_print_tokens_of_one_group_before_0_21() -> None:
    printed = parse_log("GPU KV cache size: 451,040 tokens")
    model = load_model("gemma-4-26b-a4b")
    pools = {
        version: next(
            f.formula
            for f in read_host(H100, BareEngine("vllm", version), model, printed).figures
            if f.unit == "tokens"
        )
        for version in ("0.19", "0.24")
    }
    settings = PoolSettings(printed=PrintedMemory())
    old = kv_pool(H100, BareEngine("vllm", "0.19"), model, settings=settings)
    assert pools["0.19"] == old.num_gpu_blocks // old.layout.n_groups * 16
    assert pools["0.24"] == kv_pool(H100, BareEngine("vllm", "0.24"), model).kv_capacity_tokens


def test_other_engines_have_no_such_rest() -> None:
    model, engine = load_model("qwen3-235b-a22b-fp8"), BareEngine("sglang", "0.5.6")
    share = PoolSettings(gpu_memory_utilization=0.93)
    found = read_host(H100, engine, model, parse_log(SGLANG), Parallelism(4), share)
    assert (found.rest_bytes, found.rest_formula_bytes) == (None, None)
    assert abs(errors(found)["KV cache, tokens"]) < 0.03
    with pytest.raises(CapacityError, match=r"kv_cache\.reserve_bytes is a term of vLLM"):
        kv_pool(H100, engine, model, Parallelism(4), replace(share, reserve_bytes=GIB))
