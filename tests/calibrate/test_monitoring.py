"""Counters of monitoring tools: each tool's own format, units, several GPUs, gaps, idle ends, one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from membound.calibrate.errors import CalibrationError
from membound.calibrate.monitoring import Monitored, beside, read_monitoring

DCGMI = """\
#Entity   GPUTL  SMACT  TENSO  DRAMA
ID
GPU 0     0      0.000  0.000  0.000
GPU 0     98     0.700  0.100  0.600
GPU 1     96     0.600  N/A    0.500
#Entity   GPUTL  SMACT  TENSO  DRAMA
ID
GPU 0     98     0.900  0.300  0.800
GPU 1     100    0.800  N/A    0.700
GPU 0     0      0.000  0.000  0.000
"""
EXPORTER = """\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",device="nvidia0",Hostname="a"} 98
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-1",device="nvidia0",Hostname="a"} 0.75
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-1",device="nvidia0",Hostname="a"} 0.125
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-1",device="nvidia0",Hostname="a"} 0.5
DCGM_FI_DEV_MEM_COPY_UTIL{gpu="0",UUID="GPU-1",device="nvidia0",Hostname="a"} 61
"""
DMON = """\
#Date       Time        gpu     sm    mem    enc    dec
#YYYYMMDD   HH:MM:SS    Idx      %      %      %      %
 20260101   10:00:00      0     97     60      -      -
 20260101   10:00:01      0     99     62      -      -
"""
QUERY = """\
timestamp, index, utilization.gpu [%], utilization.memory [%]
2026/01/01 10:00:00.000, 0, 98 %, 55 %
2026/01/01 10:00:00.000, 1, [N/A], [N/A]
2026/01/01 10:00:01.000, 0, 96 %, 55 %
"""
TRACE = {
    "traceEvents": [
        {"cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 500},
        {
            "ph": "X",
            "cat": "kernel",
            "name": "a",
            "ts": 100,
            "dur": 40,
            "args": {"device": 0, "blocks per SM": 0.5},
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": "b",
            "ts": 120,
            "dur": 40,
            "args": {"device": 0, "blocks per SM": 8},
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": "c",
            "ts": 190,
            "dur": 10,
            "args": {"device": 0, "blocks per SM": 2},
        },
    ]
}


@pytest.fixture
def read(tmp_path: Path):
    def of(text: str) -> Monitored:
        path = tmp_path / "monitor.txt"
        path.write_text(text, encoding="utf-8")
        return read_monitoring(path)

    return of


def test_dcgmi_mixes_percent_and_fractions_and_repeats_its_header(read) -> None:
    found = read(DCGMI)
    assert found.gpus["0"] == pytest.approx(
        {"gpu_util": 0.98, "sm_active": 0.8, "tensor_active": 0.2, "dram_active": 0.7}
    )
    assert found.gpus["1"] == pytest.approx({"gpu_util": 0.98, "sm_active": 0.7, "dram_active": 0.6})
    assert found.mean("sm_active") == pytest.approx(0.75)
    # one GPU has no such counter: the mean is of the other, not of a zero
    assert found.mean("tensor_active") == pytest.approx(0.2)
    assert found.warnings == ("GPU 0: 1 idle samples at the start and 1 at the end left out",)


def test_dcgm_exporter_s_text_is_read_and_copy_time_is_not_dram_active(read) -> None:
    found = read(EXPORTER)
    assert found.source == "dcgm-exporter"
    assert found.gpus == {
        "0": {"gpu_util": 0.98, "sm_active": 0.75, "tensor_active": 0.125, "dram_active": 0.5}
    }


def test_dcgm_counters_in_a_csv_may_be_in_percent(read) -> None:
    found = read("gpu,DCGM_FI_PROF_SM_ACTIVE,DCGM_FI_PROF_DRAM_ACTIVE\n0,75,50\n0,85,60\n")
    assert found.gpus["0"] == pytest.approx({"sm_active": 0.8, "dram_active": 0.55})
    assert "taken as percent" in found.warnings[0]


def test_nvidia_smi_dmon_and_query_know_only_the_utilisation(read) -> None:
    assert read(DMON).gpus == {"0": pytest.approx({"gpu_util": 0.98})}
    assert read(QUERY).gpus == {"0": pytest.approx({"gpu_util": 0.97})}


def test_a_torch_profile_counts_overlapping_kernels_once(read) -> None:
    found = read(json.dumps(TRACE))
    # kernels from 100 to 160 and 190 to 200, half of the units busy in the first 40
    assert found.gpus["0"] == pytest.approx({"gpu_util": 0.7, "sm_active": 0.5})
    assert "upper bound" in found.warnings[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a file of a monitor"),
        ("hello", "not a file of a monitor"),
        ("{", "not JSON"),
        ('{"traceEvents": []}', "no kernel in the trace"),
        ("a,b\n1,2\n", "no column of a counter"),
        ("index, utilization.gpu [%]\n0, many\n", "monitor.txt:2: UTILIZATION.GPU is 'many'"),
        ("index, utilization.gpu [%]\n0, 120 %\n", "allowed: 0 to 100 %"),
        ("index, utilization.gpu [%]\n0, [N/A]\n", "no counter has a value"),
        ("#Entity GPUTL SMACT\nID\nGPU 0 98\n", "monitor.txt:3: 2 values under 3 columns"),
    ],
)
def test_a_file_that_cannot_be_used_gets_one_line(read, text: str, says: str) -> None:
    with pytest.raises(CalibrationError) as caught:
        read(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_sentence_says_what_utilisation_hides(read) -> None:
    shares = {"hbm_weights": 0.4, "hbm_kv": 0.2, "hbm_activations": 0.03, "compute": 0.2}
    summary = {"utilization": {"gpu_util": 0.9, "sm_active": 0.7}, "time_share": shares}
    found = beside(read(EXPORTER), summary)
    assert found.memory_share == pytest.approx(0.7)
    assert found.sentence.startswith("your GPU shows 98 % utilised and waits for memory 70 % of that")
    unknown = beside(read(EXPORTER), {"utilization": {"gpu_util": None}, "time_share": shares})
    assert unknown.sentence == ""
