"""What is served live: a small model, the limits of its engine, and the loads, by the kind and speed of the device.

The loads that step parameters are fitted to have other lengths, seeds and concurrencies than those that are judged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ..hwmodels.device import DeviceProfile
from ..hwmodels.engine import EngineProfile
from ..hwmodels.hf_config import read_config
from ..hwmodels.model import ModelSpec
from ..hwmodels.stepmodel import StepModel
from ..sim.scenario import Scenario, parse_scenario
from .engineprofile import write_engine
from .publish import device_text, with_lane

Range = tuple[int, int]
"""Shortest and longest [tokens]."""
BLOCK: Final = 16
LONGEST_STEP_S: Final = 0.05
"""The model gets as many layers as a step of the whole token budget takes no longer with [s]."""
_MOST_LAYERS: Final = 16
_MOST_MEMORY: Final = 0.35
"""Weights take at most this share of the device's memory: drawing them takes as much again."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of a load's prompts and answers, each as likely as any other between two ends [tokens]."""

    prompts: Range
    answers: Range


@dataclass(frozen=True, slots=True)
class LiveSetup:
    """A model and an engine of a size that suits a kind of device.

    Attributes
    ----------
    config : the model's ``config.json``
    max_num_seqs, max_num_batched_tokens, max_model_len : the engine's limits
    judged : lengths of the loads that are judged
    concurrency : users of the closed loop that is judged
    decoding, prefilling : lengths of the loads that steps are fitted to: steps of mostly decodes, of mostly prompts
    decoding_users, prefilling_users : users of each of those, all in closed loops
    """

    config: Mapping[str, Any]
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    judged: Lengths
    concurrency: int
    decoding: Lengths
    decoding_users: tuple[int, ...]
    prefilling: Lengths
    prefilling_users: tuple[int, ...]

    @property
    def num_blocks(self) -> int:
        """KV blocks: every sequence may be as long as the longest."""
        return self.max_num_seqs * -(-self.max_model_len // BLOCK)

    @property
    def model(self) -> ModelSpec:
        """The model."""
        return read_config(self.config, "live")

    def deepened(self, layers: int) -> LiveSetup:
        """Return the same with so many layers."""
        return replace(self, config={**self.config, "num_hidden_layers": layers})


def _config(hidden: int, heads: int, kv_heads: int, inter: int, vocab: int) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inter,
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
    }


SETUPS: Final = {
    "cpu": LiveSetup(
        config=_config(512, 4, 2, 1408, 2048),
        max_num_seqs=12,
        max_num_batched_tokens=32,
        max_model_len=256,
        judged=Lengths((24, 120), (12, 48)),
        concurrency=8,
        decoding=Lengths((4, 90), (20, 50)),
        decoding_users=(1, 3, 7, 12),
        prefilling=Lengths((60, 200), (2, 12)),
        prefilling_users=(1, 4),
    ),
    "cuda": LiveSetup(
        config=_config(8192, 64, 8, 28672, 32000),
        max_num_seqs=64,
        max_num_batched_tokens=512,
        max_model_len=2048,
        judged=Lengths((128, 900), (48, 192)),
        concurrency=32,
        decoding=Lengths((16, 600), (60, 120)),
        decoding_users=(1, 4, 12, 24, 40, 64),
        prefilling=Lengths((400, 1500), (4, 40)),
        prefilling_users=(4, 20),
    ),
}
"""By kind of device. Layers are added as ``sized`` says; on a GPU they are wide, so that kernels outlast launches."""


def sized(setup: LiveSetup, device: DeviceProfile, engine: EngineProfile) -> LiveSetup:
    """Return a setup whose model has the layers that suit a device's speed."""
    chosen = setup
    for layers in range(1, _MOST_LAYERS + 1):
        deeper = setup.deepened(layers)
        timer = StepModel(device, engine, deeper.model)
        if (
            layers > 1
            and timer.step_ns(0, 0, 0, [(setup.max_num_batched_tokens, 0)], 1) > LONGEST_STEP_S * 1e9
        ):
            break
        chosen = deeper
    return chosen


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """Device, engine and model as files, as a scenario names them."""

    device: Path
    engine: Path
    model: Path


def write_files(folder: Path, setup: LiveSetup, device: DeviceProfile, engine: EngineProfile) -> LiveFiles:
    """Write what a scenario of the live engine names."""
    files = LiveFiles(folder / "device.yaml", folder / "engine.yaml", folder / "model" / "config.json")
    text = device_text(device)
    for family, lanes in device.fitted.items():
        for lane, fitted in lanes.items():
            text = with_lane(text, family, lane, fitted)
    files.device.write_text(text, encoding="utf-8")
    write_engine(engine, files.engine)
    files.model.parent.mkdir(exist_ok=True)
    files.model.write_text(json.dumps(dict(setup.config), indent=1), encoding="utf-8")
    return files


def scenario_of(
    setup: LiveSetup,
    files: LiveFiles,
    name: str,
    arrivals: Mapping[str, Any],
    requests: int,
    seed: int,
    lengths: Lengths,
) -> Scenario:
    """Return a load on the live engine, as ``membound simulate`` takes it.

    Parameters
    ----------
    setup, files : what is served
    name : of the load
    arrivals : its ``workload.arrivals``
    requests : how many
    seed : of arrivals and lengths
    lengths : of its prompts and answers
    """

    def between(ends: Range) -> dict[str, Any]:
        return {"kind": "uniform", "low": ends[0], "high": ends[1]}

    return parse_scenario(
        {
            "name": name,
            "device": str(files.device),
            "engine": str(files.engine),
            "model": str(files.model),
            "scheduler": {
                "max_num_seqs": setup.max_num_seqs,
                "max_num_batched_tokens": setup.max_num_batched_tokens,
                "async_scheduling": False,
            },
            "kv_cache": {
                "block_size": BLOCK,
                "enable_prefix_caching": False,
                "max_model_len": setup.max_model_len,
                "num_gpu_blocks_override": setup.num_blocks + 1,
            },
            "workload": {
                "arrivals": dict(arrivals),
                "input_tokens": between(lengths.prompts),
                "output_tokens": between(lengths.answers),
                "requests": requests,
            },
            "simulation": {"seed": seed},
        }
    )
