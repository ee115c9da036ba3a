"""Whether the wheel is the whole product: built from the sdist, installed alone, run outside the repository.

``python benchmarks/wheel_check.py [PYTHON ...]`` needs a package index. For each interpreter: a clean environment, the
base install with its size, ``pip check``, the demo scenario held against what README quotes, errors that name the
extra that is missing, the packages ``kernels`` and ``transformers`` beside it, and whether ``constraints.txt``
resolves. It exits with 1 where a bar is missed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LARGEST_MB = 450
"""Largest base install [MB]."""
DEMO = "membound simulate examples/demo-chat.yaml"
EXTRAS = {
    ("dashboard",): "app",
    ("report", "out"): "app",
    ("calibrate", "measure", "--device", "cpu", "--budget", "5s", "--out", "run"): "calibrate",
    ("sweep", "study.yaml", "--backend", "dask"): "cluster",
}
"""Commands that the base install lacks something for, and the extra that has it."""
BESIDE = """
import importlib.metadata as m, kernels, membound.kernels, transformers
assert "membound" not in kernels.__file__ and kernels.__file__ != membound.kernels.__file__
tops = {str(f).split("/")[0] for f in m.files("membound") if not str(f).startswith("..")}
assert tops <= {"membound", f"membound-{m.version('membound')}.dist-info"}, tops
print(f"kernels {m.version('kernels')}, transformers {m.version('transformers')}: unharmed")
"""


def main(pythons: Sequence[str]) -> int:
    """Check every interpreter and return 1 where one misses a bar."""
    with tempfile.TemporaryDirectory(prefix="wheel-") as given:
        folder = Path(given)
        wheel = _built(folder)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, from the sdist")
        faults = [
            fault for at, python in enumerate(pythons) for fault in _checked(python, wheel, folder / str(at))
        ]
    for fault in faults:
        print(f"MISSED: {fault}")
    return int(bool(faults))


def _built(folder: Path) -> Path:
    """Return the wheel that is built from the sdist of what git has."""
    source = folder / "source"
    source.mkdir()
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x"], cwd=source, input=packed.stdout, check=True)
    make = "import setuptools.build_meta as b, sys; print(getattr(b, f'build_{sys.argv[1]}')(sys.argv[2]))"
    _run([sys.executable, "-c", make, "sdist", str(folder)], source)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        file.extractall(folder, filter="data")
    _run([sys.executable, "-c", make, "wheel", str(folder)], folder / sdist.name.removesuffix(".tar.gz"))
    (wheel,) = folder.glob("*.whl")
    return wheel


def _checked(python: str, wheel: Path, folder: Path) -> list[str]:
    """Install the wheel into an environment of its own and return what is wrong."""
    _run([python, "-m", "venv", str(folder)], wheel.parent)
    binary, empty = folder / "bin", folder / "empty"
    empty.mkdir()
    pip = [str(binary / "python"), "-m", "pip", "--disable-pip-version-check"]
    (site,) = (folder / "lib").glob("*/site-packages")
    before = _size(site)
    _run([*pip, "install", "--quiet", str(wheel)], empty)
    size = (_size(site) - before) / 1e6
    version = _run([str(binary / "python"), "-V"], empty).strip()
    print(
        f"{version}: base install {size:.0f} MB (at most {LARGEST_MB}); {_run([*pip, 'check'], empty).strip()}"
    )
    faults = [] if size <= LARGEST_MB else [f"{version}: {size:.0f} MB"]
    faults += [f"{version}: {fault}" for fault in (*_demo(binary, empty), *_extras(binary, empty))]
    _run([*pip, "install", "--quiet", "kernels", "transformers"], empty)
    print("  " + _run([str(binary / "python"), "-c", BESIDE], empty).strip())
    faults += [f"{version}, beside kernels: {fault}" for fault in _demo(binary, empty)]
    resolve = [*pip, "install", "--dry-run", "--quiet", "-c", str(ROOT / "constraints.txt"), f"{wheel}[dev]"]
    resolved = subprocess.run(resolve, cwd=empty, capture_output=True, text=True, check=False)
    print(f"  constraints.txt {'resolves' if resolved.returncode == 0 else 'DOES NOT RESOLVE'}")
    return faults if resolved.returncode == 0 else [*faults, f"{version}: {resolved.stderr.strip()[-400:]}"]


def _demo(binary: Path, folder: Path) -> list[str]:
    """Run the demo without the repository and hold it against README."""
    (folder / "examples").mkdir(exist_ok=True)
    (folder / "examples" / "demo-chat.yaml").write_text((ROOT / "examples" / "demo-chat.yaml").read_text())
    words = DEMO.split()
    printed = _run([str(binary / words[0]), *words[1:]], folder)
    quoted = (ROOT / "README.md").read_text().partition(f"$ {DEMO}\n")[2].partition("```")[0]
    same = [line.rstrip() for line in printed.splitlines()] == [line.rstrip() for line in quoted.splitlines()]
    print(f"  {DEMO}: {'as README quotes it' if same else 'NOT as README quotes it'}")
    return [] if same else ["the demo prints something else than README quotes"]


def _extras(binary: Path, folder: Path) -> list[str]:
    """Return the commands that do not say in one line which extra they lack."""
    _run([str(binary / "membound"), *DEMO.split()[1:], "--num-prompts", "9", "--out", "out"], folder)
    (folder / "study.yaml").write_text("base: examples/demo-chat.yaml\nover: {simulation.seed: [1, 2]}\n")
    faults: list[str] = []
    for words, extra in EXTRAS.items():
        ran = subprocess.run(
            [str(binary / "membound"), *words], cwd=folder, capture_output=True, text=True, check=False
        )
        if ran.returncode != 2 or ran.stderr.count("\n") != 1 or f"membound[{extra}" not in ran.stderr:
            faults.append(f"{' '.join(words)}: {ran.returncode} {ran.stderr.strip()[:300]}")
    print(f"  {len(EXTRAS) - len(faults)} of {len(EXTRAS)} missing extras are named in one line")
    return faults


def _size(folder: Path) -> int:
    """Return the bytes of the files of a folder, caches included [B]."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _run(command: Sequence[str], folder: Path) -> str:
    """Run a command without this interpreter's paths and return what it prints."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(
            f"{' '.join(command)[:200]}: exit {ran.returncode}\n{ran.stdout[-1500:]}{ran.stderr[-1500:]}"
        )
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [sys.executable]))
