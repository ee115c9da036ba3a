"""Each wrong line of `make mutants` stands for one that is there, once."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_every_fault_replaces_one_line_that_is_there():
    faults = runpy.run_path(str(ROOT / "benchmarks" / "mutants.py"))["FAULTS"]
    assert len(faults) == 20
    for fault in faults:
        assert (ROOT / fault.file).read_text().count(fault.right) == 1, fault.right
        assert all((ROOT / test).is_file() for test in fault.tests)
