"""Files that a reader brings: told by what is in them, held against the scenario or the device, never executed.

Nothing here knows Streamlit. A file is written into a folder of its own under a name of ours, read, and removed.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...calibrate.device import of_device
from ...calibrate.imports import import_table
from ...calibrate.residuals import LanePoints, LaneResiduals, Role, held_against, residuals_of
from ...calibrate.run import CalibrationRun
from ...calibrate.serving.compare import RunErrors, compare
from ...calibrate.serving.exports import served_export
from ...calibrate.serving.load import Choice, load_runs
from ...calibrate.serving.play import play_all
from ...calibrate.serving.run import ServedRun, Skipped
from ...calibrate.serving.table import MARKS
from ...hwmodels.device import load_device
from ...hwmodels.errors import MemboundError

if TYPE_CHECKING:
    from ...calibrate.table import KernelTable
    from ...hwmodels.device import DeviceProfile
    from ...sim.scenario import Scenario
    from .jobs import Progress

LARGEST = 20 * 2**20
"""Largest file that is read [B]."""
LARGEST_UNPACKED = 200 * 2**20
"""Largest a gzip file may become [B]."""
TYPES = ("json", "jsonl", "csv", "parquet", "gz")
MOST_CELLS = 5_000_000
"""Most rows times columns of a Parquet file: its columns pack by any factor [-]."""
LONGEST_NAME = 80
"""Characters of a file's name that are shown [-]."""
MOST_POINTS = 500
"""Measured points that are drawn beside a plan."""
MOST_RUNS = 40
"""Served runs of a table that are replayed."""


class UploadError(MemboundError):
    """A file that cannot be taken."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of the files.

    Attributes
    ----------
    notes : what was read, one line each
    run : a calibration run; its lanes beside their timings where those were brought too
    lanes : lanes of that run, or nothing
    points : lanes of the sidebar's device beside timings
    served : served runs beside their replay
    skipped : served runs that cannot be replayed, and why
    """

    notes: tuple[str, ...] = ()
    run: CalibrationRun | None = None
    lanes: tuple[LaneResiduals, ...] = ()
    points: tuple[LanePoints, ...] = ()
    served: tuple[RunErrors, ...] = ()
    skipped: tuple[Skipped, ...] = field(default=())


def check(
    files: Sequence[tuple[str, bytes]], scenario: Scenario, progress: Progress | None = None
) -> Checked:
    """Hold files against the scenario of the sidebar.

    Parameters
    ----------
    files : name and content: a calibration run (``fit.json``), timings of kernels, what a load generator wrote, or a
        table of served runs; timings beside a run are held against that run, else against the device
    scenario : what served, and whose device's lanes are meant
    progress : called with the served runs that were replayed, and all of them

    Raises
    ------
    MemboundError : one line: which file, and what is wrong with it
    """
    with tempfile.TemporaryDirectory(prefix="membound-") as folder:
        return _Files(Path(folder), files).check(scenario, progress)


def measured_points(name: str, content: bytes, model: str) -> tuple[list[dict[str, Any]], str]:
    """Read what was measured of a model, as rows beside the configurations of a plan.

    Parameters
    ----------
    name, content : a table of served runs, or of TTFT/TPOT points
    model : id of the model whose rows are wanted

    Returns
    -------
    rows : ``tokens_per_s_per_user`` (1 / mean TPOT), ``tokens_per_s_per_gpu`` [output tokens/s], ``label``, ``source``
    note : how many there are, and how many were left out

    Raises
    ------
    MemboundError : one line: what is wrong with the file
    """
    with tempfile.TemporaryDirectory(prefix="membound-") as folder:
        files = _Files(Path(folder), [(name, content)])
        if not files.tables:
            raise UploadError(
                f"{name} is no table of measured points; needs the columns {', '.join(MARKS['points'])}"
            )
        shown, path = files.tables[0]
        runs, left = _naming(shown, path, lambda: load_runs(path, Choice(models=(model,), limit=MOST_POINTS)))
    rows = [row for run in runs for row in _point(run)]
    note = f"{shown}: {len(rows)} measured points of {model}"
    without = len(runs) - len(rows)
    reasons = dict.fromkeys(each.reason for each in left)
    note += f"; {len(left)} rows left out: {next(iter(reasons))}" if left else ""
    return rows, note + (f"; {without} without TPOT or throughput" if without else "")


def _point(run: ServedRun) -> Iterator[dict[str, Any]]:
    """Yield where a run stands between speed of a user and output of a GPU, if it says both."""
    tpot, output = run.measured.get("tpot_mean"), run.measured.get("output_tokens_per_s")
    if not tpot or not output:
        return
    ranks = run.scenario.parallelism
    gpus = ranks.tensor_parallel_size * ranks.pipeline_parallel_size * ranks.data_parallel_size
    users = f", {run.concurrency} users" if run.concurrency else ""
    yield {
        "tokens_per_s_per_user": 1 / tpot,
        "tokens_per_s_per_gpu": output / (gpus * run.scenario.cluster.total),
        "label": f"{run.label.run_id}: {run.label.engine} on {gpus} x {run.label.gpu}{users}",
        "source": "measured",
    }


class _Files:
    """The files on disk, sorted by what they are."""

    def __init__(self, folder: Path, files: Sequence[tuple[str, bytes]]) -> None:
        self.runs: list[tuple[str, CalibrationRun]] = []
        self.timings: list[tuple[str, Path]] = []
        self.tables: list[tuple[str, Path]] = []
        self.exports: list[tuple[str, Path]] = []
        for at, (name, content) in enumerate(files):
            place = folder / str(at)
            place.mkdir()
            path = place / _safe(name)
            shown = name if len(name) <= LONGEST_NAME else f"{name[:50]}…{name[-20:]}"
            _check_size(shown, content)
            path.write_bytes(content)
            if path.suffix == ".parquet":
                _check_cells_of(shown, path)
            self._sort(shown, path, content)

    def _sort(self, name: str, path: Path, content: bytes) -> None:
        if path.name.endswith(".json") and b'"fits"' in content:
            self.runs.append((name, _naming(name, path, lambda: CalibrationRun.load(path))))
            return
        header = _header(path, content)
        if any(header.issuperset(marks) for marks in MARKS.values()):
            _check_cells(name, content)
            self.tables.append((name, path))
        elif "latency_us" in header or path.suffix == ".parquet":
            self.timings.append((name, path))
        else:
            self.exports.append((name, path))

    def check(self, scenario: Scenario, progress: Progress | None) -> Checked:
        """Hold every file against what it is of."""
        notes: list[str] = []
        run = self.runs[0][1] if self.runs else None
        if len(self.runs) > 1:
            raise UploadError(f"{self.runs[1][0]}: a second calibration run; allowed: one at a time")
        device = load_device(run.device if run and not run.environment else scenario.device)
        table = self._timings(device, notes)
        served: list[ServedRun] = []
        skipped: list[Skipped] = []
        for name, path in self.tables:
            found, left = _naming(name, path, lambda path=path: load_runs(path))
            served += found
            skipped += left
            notes.append(f"{name}: {len(found)} served runs, {len(left)} that cannot be replayed")
        for name, path in self.exports:
            found = _naming(name, path, lambda path=path: served_export(path, scenario))
            served.append(replace(found, label=replace(found.label, run_id=name)))
            notes.append(f"{name}: requests of a load generator, served by the scenario of the sidebar")
        if len(served) > MOST_RUNS:
            notes.append(f"the first {MOST_RUNS} of {len(served)} served runs are replayed")
        answered: list[RunErrors] = []
        wanted = served[:MOST_RUNS]
        for done, (each, outcome) in enumerate(play_all(wanted), 1):
            if isinstance(outcome, Skipped):
                skipped.append(outcome)
            else:
                answered.append(compare(each, outcome))
            if progress is not None:
                progress(done, len(wanted))
        if run is not None:
            notes.append(
                f"{self.runs[0][0]}: calibration run {run.id} of {run.device}, {len(run.fits)} lanes"
            )
        lanes: tuple[LaneResiduals, ...] = ()
        if run is not None:
            rows: dict[Role, KernelTable] = {} if table is None else {"held out": table}
            lanes = _naming(self.runs[0][0], Path(), lambda: residuals_of(run, device, rows))
        return Checked(
            tuple(notes),
            run,
            lanes,
            held_against(device, table) if table is not None and run is None else (),
            tuple(answered),
            tuple(skipped),
        )

    def _timings(self, device: DeviceProfile, notes: list[str]) -> KernelTable | None:
        if not self.timings:
            return None
        if len(self.timings) > 1:
            raise UploadError(f"{self.timings[1][0]}: a second table of timings; allowed: one at a time")
        name, path = self.timings[0]
        found = _naming(name, path, lambda: import_table(path))
        table = _naming(name, path, lambda: of_device(found.table, device))
        notes.append(f"{name}: {len(table):,} timings of {device.id}")
        return table


def _naming(name: str, path: Path, read: Any) -> Any:
    """Return what is read, faults told by the reader's name of the file and not by ours."""
    try:
        return read()
    except MemboundError as error:
        text = str(error).replace(str(path), name).replace(str(path.parent), "")
        raise UploadError(text if name in text else f"{name}: {text}") from None
    except (ValueError, LookupError, TypeError, OSError, EOFError) as error:
        told = " ".join(str(error).split())[:200].replace(str(path), name)
        raise UploadError(f"{name} cannot be read: {told or type(error).__name__}") from None


def _safe(name: str) -> str:
    """Return a name of ours with the ends that tell how a file is written.

    >>> _safe("../../etc/run one.csv.gz"), _safe("fit.json")
    ('upload.csv.gz', 'upload.json')
    """
    ends = re.findall(r"\.(json|jsonl|csv|parquet|gz)(?=\.|$)", name.lower())
    return ".".join(["upload", *ends[-2:]])


def _check_size(name: str, content: bytes) -> None:
    if not content:
        raise UploadError(f"{name} is empty")
    if len(content) > LARGEST:
        raise UploadError(f"{name} has {len(content) / 2**20:.1f} MiB; allowed: {LARGEST / 2**20:.0f} MiB")
    if content[:2] == b"\x1f\x8b" and len(_unpacked(name, content)) > LARGEST_UNPACKED:
        raise UploadError(f"{name} unpacks to more than {LARGEST_UNPACKED / 2**20:.0f} MiB")


def _check_cells_of(name: str, path: Path) -> None:
    """Refuse a Parquet file that is small and holds more than memory does."""
    from pyarrow import ArrowException
    from pyarrow.parquet import read_metadata

    try:
        found = read_metadata(path)
    except (ArrowException, OSError):
        return  # whoever reads it says what is wrong
    if found.num_rows * found.num_columns > MOST_CELLS:
        raise UploadError(
            f"{name} has {found.num_rows:,} rows of {found.num_columns} columns; allowed: {MOST_CELLS:,} values"
        )


def _unpacked(name: str, content: bytes) -> bytes:
    """Return the content of a gzip file, of one that is too large no more than tells it."""
    try:
        with gzip.open(io.BytesIO(content)) as file:
            return file.read(LARGEST_UNPACKED + 1)
    except (OSError, EOFError) as error:
        raise UploadError(f"{name} is no gzip file: {error}") from None


def _text(content: bytes) -> str:
    plain = _unpacked("file", content) if content[:2] == b"\x1f\x8b" else content
    return plain.decode("utf-8-sig", errors="replace")


def _header(path: Path, content: bytes) -> set[str]:
    """Return the columns of a CSV file; of anything else none."""
    if ".csv" not in path.name:
        return set()
    try:
        first = next(csv.reader(_text(content).splitlines()[:1]), [])
    except csv.Error:
        return set()  # whoever reads it says what is wrong
    return {word.strip() for word in first}


def _rows(name: str, content: bytes) -> list[list[str]]:
    try:
        return list(csv.reader(_text(content).splitlines()))
    except csv.Error as error:
        raise UploadError(f"{name}: {error}") from None


def _check_cells(name: str, content: bytes) -> None:
    """Refuse a table that names files: what is uploaded stands alone."""
    for number, row in enumerate(_rows(name, content), 1):
        for cell in row:
            if cell.startswith(("/", "\\", "~")) or ".." in cell or "\\" in cell:
                raise UploadError(
                    f"{name}: line {number}: {cell[:60]!r} names a file; a table that is uploaded stands alone"
                )
