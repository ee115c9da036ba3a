"""What an attacker sends: sections, files and options that cannot be, each refused soon, in one line."""

from __future__ import annotations

import copy
import gzip
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

from .conftest import SMALL

LIMIT_S = 10.0
"""CPU time one input may take [s]."""
NAN, INF = float("nan"), float("inf")
WORKLOAD = yaml.safe_load(SMALL)["workload"]
BOMB = "".join(f"b{at}: &b{at} [{', '.join([f'*b{at - 1}' if at else 'x'] * 10)}]\n" for at in range(10))
"""Ten thousand million values in a kilobyte."""

SECTIONS: dict[str, list[object]] = {
    "cluster": [
        "x", 5, [], *({"replicas": count} for count in (0, -1, 1.5, "two", 10**9, NAN, [], True, {"count": 2})),
        *({"replicas": [group]} for group in (
            5, None, {"count": 0}, {"count": -2}, {"count": 10**7}, {"count": True}, {"devise": "l40s"},
            {"workload": {}},
            {"cluster": {"replicas": 2}}, {"simulation": {"seed": 3}}, {"slo": {}}, {"scheduler": {"max_num_seqs": 0}},
            {"device": {"base": "h100_sxm", "hbm_bandwidth": "x-1"}}, {"model": "llama-3.1-70b"},
            {"colocated": {"model": "qwen3-14b"}}, {"compute_split": {"prefill": 0.5, "decode": 0.5}})),
        *({"replicas": 2, "router": router} for router in ("rr", 5, {}, ["random"], "os:system", "nomod:X")),
        {"replicas": 2, "rooter": "random"},
    ],
    "colocated": [
        "x", 5, [], {}, {"model": 5}, {"model": "nope"}, {"model": "qwen3-14b"}, [{"model": "qwen3-14b"}],
        {"model": "qwen3-14b", "device": "l40s"}, {"model": "qwen3-14b", "workload": {}},
        {"model": "qwen3-14b", "workload": WORKLOAD, "cluster": {"replicas": 2}},
        {"model": "qwen3-14b", "workload": WORKLOAD, "bogus": 2},
        {"model": "qwen3-14b", "workload": WORKLOAD, "kv_cache": {"gpu_memory_utilization": 0.9}},
        {"model": "qwen3-14b", "colocated": {}},
    ],
    "compute_split": [
        "x", 5, [], {}, {"prefill": 0.5}, {"decode": 0.5}, {"prefill": 0.5, "decode": 0.5, "x": 1},
        *({"prefill": share, "decode": 0.6} for share in (0.6, 0, -0.1, NAN, INF, "half", True)),
    ],
    "parallelism": [
        "x", 5, [], {"dp": 2}, {"enable_expert_parallel": True}, {"expert_parallel": "maybe"},
        {"expert_parallel_size": 2},
        *({"tensor_parallel_size": count} for count in (0, -2, 3, 10**9, 2.5, NAN, True)),
        *({"pipeline_parallel_size": count} for count in (0, -1, 33, "two")),
        *({"data_parallel_size": count} for count in (0, -1, 2.5, 10**9)),
    ],
    "node": ["x", 5, [], {"gpus": 0}, {"gpus": -1}, {"bogus": 1}, {"name": "dgx"}],
    "price": [
        "x", 5, [], -1, {"plan": "on_demandd"}, {"plan": 5}, {"plan": "owned"}, {"owned": 5}, {"owned": {}},
        {"table": 5},
        {"table": "nope.yaml"}, {"table": "."}, {"usd_per_gpu_hour": -1}, {"usd_per_gpu_hour": NAN}, {"bogus": 1},
    ],
    "simulation": [
        "x", 5, [], {"bogus": 1}, *({"window": window} for window in ([5, 1], [NAN, 5], {"from": 1}, 0, -1, NAN)),
        *({"warmup": warmup} for warmup in (-1, NAN, INF, "long", [])), *({"seed": seed} for seed in (-1, 0.5, True)),
    ],
    "kv_cache": [
        "x", [], {"eviction": "lruu"}, {"eviction": {}}, {"eviction": {"policy": "x"}}, {"block_size": 0}, {"keep": 2},
        *({"tiers": tiers} for tiers in (5, [5], [{}], "x")),
        *({"tiers": [{"kind": "dram", "capacity": size}]} for size in (-1, "1ZB", NAN)),
        {"tiers": [{"kind": "tape"}]}, {"tiers": [{"kind": "dram", "policy": "mru"}]}, {"allocator": "x:Y"},
        {"allocator": "paged2"}, {"kv_cache_memory_bytes": -1}, {"gpu_memory_utilization": 0}, {"swap_space": INF},
    ],
    "slo": [
        "x", 5, [], {"attainment": 1.5}, {"attainment": NAN}, {"classes": 5}, {"classes": {"default": 5}},
        {"classes": {"default": {"ttft_s": -1}}}, {"classes": {"default": {"tpot": 1}}},
        {"classes": {5: {"ttft_s": 1}}},
    ],
    "speculative": ["x", 5, [], {}, {"k": -1}],
}  # fmt: skip

ABSURD = [
    *(f"kv_cache.kv_cache_memory_bytes={size}" for size in ("1e40", "1e300", "100EB", "1000TB", "200GiB")),
    "kv_cache.reserve_bytes=1e40",
    "kv_cache.reserve_bytes=500GB",
    "kv_cache.swap_space=1e40",
    "kv_cache.num_gpu_blocks_override=1e20",
    "kv_cache.num_gpu_blocks_override=1000000",
    "kv_cache.max_model_len=1e18",
    "kv_cache.block_size=1e12",
    "kv_cache.cross_layer_sharing=33",
    "scheduler.max_num_seqs=1e15",
    "scheduler.max_num_batched_tokens=1e18",
    "scheduler.long_prefill_token_threshold=1e30",
    "parallelism.pipeline_parallel_size=1e9",
    "parallelism.tensor_parallel_size=8192",
    "node.gpus=1e12",
    "workload.requests=1e12",
    "workload.max_concurrency=1e30",
    "workload.duration_s=1e30",
    "workload.input_tokens=1e10",
    *(f"workload.arrivals.rate_per_s={rate}" for rate in ("1e300", "1e-300")),
    *(f"workload.arrivals={{kind: gamma, rate_per_s: 4, cv: {cv}}}" for cv in ("1e300", "1e-300")),
    "workload.arrivals={kind: closed_loop, concurrency: 1e30}",
    "workload.arrivals={kind: closed_loop, concurrency: 4, think_time_s: 1e300}",
    "workload.expert_routing={kind: zipf, s: 1e300}",
    "workload.tenants={a: 1e300, b: 1}",
    "simulation.seed=18446744073709551616",
    "simulation.window=1e300",
    "simulation.warmup=1e300",
    "slo.classes={default: {ttft_s: 1e300}}",
    "slo.classes={gold: {ttft_s: 1}}",
    "slo.classes={default: {ttft_s: 1}, gold: {tpot_s: 1}}",
    "kv_cache.tiers=[{kind: dram, capacity: 1e40}]",
    "kv_cache.tiers=[{kind: dram, latency: 1e300}]",
    *(f"kv_cache.tiers=[{{kind: dram, read_bandwidth: {rate}}}]" for rate in ("1e300", "1e-300")),
    "kv_cache.tiers=[{kind: dram, queue_depth: 1e30}]",
    "kv_cache.eviction={kind: window, window: 1e30}",
    "cluster.replicas=100000",
    "price.usd_per_gpu_hour=1e300",
    "name=" + "x" * 100_000,
]
"""Numbers that no machine has, and names that nobody asks for."""

SETS = [
    "", "=", "=5", "a", ".=5", "a.=5", ".a=5", "workload=5", "workload.requests=1e400", "workload.requests=*x",
    "name={a: 1}",
    "workload.requests=&a [*a]", "simulation.seed=[", "simulation.seed=!!int x", "device={}", "device=5", "device=null",
    "device.bogus=5", "model=null", "model={}", "model=~nobody/x", "scheduler.options.aging=5",
    "scheduler.name=os:system",
    "scheduler.name=a:", "workload.input_tokens.kind=zipf", "\x00=1", "a" * 100_000 + "=1", "x." * 5000 + "y=1",
    "workload.requests=" + "9" * 6000, *(f"device.hbm_bandwidth={value}" for value in (
        "x0", "x-1", "xnan", "xinf", "x1e308", "1e300", "1e-300", "nan", "x" + "9" * 400)),
    "device.hbm_capacity=0", "device.hbm_capacity=x1e-9", "device.peak_flops=5", "device.link.bandwidth=x0",
]  # fmt: skip

FILES = {
    "nothing": b"", "null": b"null", "NUL bytes": b"\x00" * 100, "a list": b"- 1\n", "a number": b"5",
    "latin-1": b"\xe9",
    "a bomb": BOMB.encode(), "itself": b"slo: &a [*a]\n", "twice": b"name: a\nname: b\n", "deep": b"a: " + b"[" * 5000,
    "a date": b"name: 2020-99-99\n", "5000 digits": b"a: " + b"9" * 5000, "a list as key": b"? [1]\n: 1\n",
    "an object": b'!!python/object/apply:os.system ["true"]', "UTF-16": SMALL.encode("utf-16"),
}  # fmt: skip

HEAD = "arrival_s,input_tokens,output_tokens\n"
TRACES = {
    "nul.csv": HEAD + "0,\x00,5\n", "binary.csv": bytes(range(256)) * 4,
    "digits.csv": HEAD + "0," + "9" * 5000 + ",5\n",
    "endless.csv": HEAD + "1e400,5,5\n", "int64.csv": HEAD + "0,9223372036854775808,5\n",
    "quote.csv": HEAD + '0,"5,5\n',
    "wide.csv": HEAD + "0,1,1,1,1\n", "narrow.csv": HEAD + "0,1\n", "long.csv": HEAD + "0," + "x" * 300_000 + ",1\n",
    "half.csv": HEAD + "0,5.5,5\n", "list.jsonl": "[1,2]\n", "deep.jsonl": "[" * 100_000 + "\n",
    "deeper.jsonl": '{"a":' * 100_000 + "\n", "cut.jsonl": '{"arrival_s": 0, "input_tok', "null.json": "null",
    "digits.jsonl": '{"arrival_s": 0, "input_tokens": ' + "9" * 5000 + ', "output_tokens": 5}\n',
    "nan.jsonl": '{"arrival_s": NaN, "input_tokens": 5, "output_tokens": 5}\n', "junk.csv.gz": b"\x1f\x8bjunk",
    **{f"ids{at}.jsonl": f'{{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": {ids}}}\n'
       for at, ids in enumerate(("[1.5]", "[-1]", "[1, true]", "[1e400]", "[18446744073709551616]", '"-1"', "5"))},
    "cut.csv.gz": gzip.compress((HEAD + "0,5,5\n" * 9000).encode(), mtime=0)[:60], "junk.parquet": b"PAR1junkPAR1",
}  # fmt: skip

OPTIONS = [
    ["explain", "small.yaml", "--roofline", "--jobs", "0"], ["explain", "small.yaml", "--jobs", "0"],
    ["explain", "small.yaml", "--scale", "hbm_bandwidth", "--jobs", "-1"], ["plan", "plan.yaml", "--jobs", "0"],
    ["plan", "plan.yaml", "--jobs", "1000000000"], ["plan", "plan.yaml", "--draws", "-1"],
    ["plan", "plan.yaml", "--draws", "1000000000"], ["compare", "small.yaml", "plan.yaml", "--jobs", "0"],
    ["explain", "small.yaml", "--repeat", "0"], ["explain", "small.yaml", "--requests", "0"],
    ["explain", "small.yaml", "--percent", "nan"],
    *(["sweep", "study.yaml", "--slice", part] for part in (
        "0/4", "5/4", "-1/4", "1/0", "x/y", "1", "1/1/1", "\u00b2/4", "\u0663/4", "")),
    *(["simulate", "small.yaml", "--draws", draws] for draws in ("-1", "1", "1000000000", "x")),
    ["simulate", "small.yaml", "--draws", "4", "--jobs", "1000000000"],
    ["simulate", "small.yaml", "--request-rate", "1e300"], ["simulate", "small.yaml", "--num-prompts", "1e12"],
]  # fmt: skip

CANDIDATES: dict[str, object] = {
    "a value 20,000 times": {"device": ["h100_sxm"] * 20_000},
    "20,000 values": {"max_num_seqs": list(range(1, 20_001))},
    "a thousand million": {key: list(range(1, 1001)) for key in (
        "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size")},
    "twice": {"device": ["l40s", "h100_sxm", "l40s"]},
    "none": {}, "no list": [1], "an empty list": {"device": []},
}  # fmt: skip


@contextmanager
def soon() -> Iterator[None]:
    def stop(*_: object) -> None:
        pytest.fail(f"took more than {LIMIT_S} s of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.fixture
def refused(membound):
    """Return a check that a command is refused in one line of bounded length."""

    def check(*words: object) -> None:
        with soon():
            ran = membound(*words)
        assert (ran.code, ran.out) == (2, ""), ran
        assert ran.err.startswith("error: ")
        assert ran.err.count("\n") == 1
        assert len(ran.err) < 2100
        assert "Traceback" not in ran.err
        assert "internal" not in ran.err

    return check


@pytest.mark.parametrize(
    ("section", "value"), [(name, value) for name, values in SECTIONS.items() for value in values]
)
def test_a_section_that_cannot_be_is_refused(refused, small, section, value):
    data = copy.deepcopy(yaml.safe_load(SMALL))
    small.write_text(yaml.safe_dump({**data, section: value}))
    refused("simulate", small)


@pytest.mark.parametrize("text", SETS, ids=lambda text: repr(text[:40]))
def test_an_assignment_that_cannot_be_is_refused(refused, small, text):
    refused("simulate", small, "--set", text)


@pytest.mark.parametrize("text", ABSURD, ids=lambda text: text[:60])
def test_a_number_that_no_machine_has_is_refused(refused, small, text):
    refused("simulate", small, "--set", text)


@pytest.fixture
def plan_file(tmp_path, small):
    """Return a function that writes a plan with these candidates."""

    def write(candidates: object) -> str:
        asked = {"base": small.name, "load": {"rate_per_s": 9}, "candidates": candidates}
        slo = {"slo": {"classes": {"default": {"ttft_s": 1}}}}
        (tmp_path / "plan.yaml").write_text(yaml.safe_dump(asked | slo))
        return "plan.yaml"

    return write


@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
def test_an_option_that_cannot_be_is_refused(refused, plan_file, tmp_path, words):
    plan_file({"device": ["h100_sxm"]})
    (tmp_path / "study.yaml").write_text("base: small.yaml\nover: {simulation.seed: [1, 2]}\n")
    refused(*words)


@pytest.mark.parametrize("what", CANDIDATES)
def test_candidates_of_a_plan_that_cannot_be_are_refused(refused, plan_file, what):
    refused("plan", plan_file(CANDIDATES[what]))


def test_a_class_of_an_slo_may_be_that_of_a_request_beyond_the_limit(membound, small, tmp_path):
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens,slo_class\n0,9,9,\n1,9,9,gold\n")
    sets = [f"--set={text}" for text in (
        "workload.trace.path=t.csv", "workload.trace.limit=1", "slo.classes={gold: {ttft_s: 1}}")]  # fmt: skip
    assert membound("simulate", small, "--quiet", *sets).code == 0


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "x.yaml"], ["plan", "x.yaml"], ["devices", "x.yaml"],
        ["simulate", "small.yaml", "--device", "x.yaml"], ["simulate", "small.yaml", "--engine", "x.yaml"],
        ["simulate", "small.yaml", "--set", "price.table=x.yaml"],
        ["simulate", "small.yaml", "--set", "kv_cache.tiers=[{kind: x.yaml}]"],
        ["simulate", "small.yaml", "--model", "x.yaml"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_file_that_cannot_be_is_refused_at_every_door(refused, small, tmp_path, what, words):
    (tmp_path / "x.yaml").write_bytes(FILES[what])
    refused(*words)


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_that_cannot_be_is_refused(refused, tmp_path, name):
    content = TRACES[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    refused("trace", "inspect", name)


@pytest.mark.parametrize("words", [["simulate"], ["trace", "inspect"], ["report"]], ids=" ".join)
@pytest.mark.parametrize("name", ["", "/", "x" * 5000, "a\0b", "a\udcff"], ids=ascii)
def test_a_name_that_no_file_has_is_refused(refused, words, name):
    refused(*words, name)


@pytest.mark.parametrize("file", ["summary.json", "provenance.json"])
@pytest.mark.parametrize("text", ["", "[1]", "[" * 100_000, "{"], ids=lambda text: repr(text[:4]))
def test_a_result_that_was_damaged_is_refused(membound, refused, small, file, text, tmp_path):
    membound("simulate", small, "--num-prompts", 3, "--out", "run", "--quiet")
    (tmp_path / "run" / file).write_text(text)
    refused("report", "run")


@pytest.mark.parametrize("text", [SMALL.replace("\n", "\r\n"), "\ufeff" + SMALL], ids=["CRLF", "BOM"])
def test_line_ends_and_byte_order_marks_of_other_systems_are_read(membound, small, text):
    small.write_bytes(text.encode())
    assert membound("simulate", small, "--quiet").code == 0
