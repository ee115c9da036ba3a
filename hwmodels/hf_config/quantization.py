"""``quantization_config``: what weights and activations are stored in, and which matrices it leaves alone.

Sources: the formats' documentation (compressed-tensors, ModelOpt, GPTQ, AWQ, DeepSeek's fp8 blocks, MXFP4).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from ..spec import (
    Attention,
    DenseFFN,
    Linear,
    MoEFFN,
    MultiHeadLatentAttention,
    Recurrent,
    WeightQuantization,
)
from .blocks import Layer
from .keys import Config

Kind = Literal["attention", "dense", "experts", "shared"]
KINDS: tuple[Kind, ...] = ("attention", "dense", "experts", "shared")
_PATTERN_KEYS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "exclude")
_FORMATS = {
    ("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4", ("float", 4): "nvfp4", ("int", 3): "int3",
    ("int", 2): "int2",
}  # fmt: skip
_ALGORITHMS = {
    "FP8": ("fp8", "fp8", 0),
    "NVFP4": ("nvfp4", "nvfp4", 16),
    "W4A16_AWQ": ("int4", "bf16", 128),
    "W4A8_AWQ": ("int4", "fp8", 128),
    "W8A8_SQ_PER_CHANNEL": ("int8", "int8", 0),
    "W8A16": ("int8", "bf16", 0),
    "W4A16": ("int4", "bf16", 0),
    "MXFP8": ("fp8", "fp8", 32),
}


def read_quantization(section: Config) -> WeightQuantization:
    """Read one ``quantization_config``.

    An unknown method is read as 8-bit float with a note, never silently as unquantised.
    """
    method = section.text("quant_method", "unknown")
    kv = _kv_cache(section)
    if section.has("config_groups"):
        return replace(_grouped(section, method), kv_cache=kv)
    if section.has("quant_algo"):
        algorithm = section.text("quant_algo")
        weights, activations, group = _ALGORITHMS.get(algorithm, ("fp8", "fp8", 0))
        if algorithm not in _ALGORITHMS:
            section.note(f"quant_algo {algorithm!r} read as FP8")
        return WeightQuantization(method, weights, activations, section.count("group_size", group), kv)
    if method in ("fp8", "fbgemm_fp8"):
        block = section.counts("weight_block_size")
        return WeightQuantization(method, "fp8", "fp8", block[-1] if block else 0, kv)
    if method == "mxfp4":
        return WeightQuantization(method, "mxfp4", "bf16", 32, kv)
    if method in ("gptq", "awq", "gptq_marlin", "awq_marlin", "auto-round"):
        bits = section.size("bits", 4)
        group = section.get("group_size")
        size = group if isinstance(group, int) and group > 0 else 0
        return WeightQuantization(method, f"int{bits}", "bf16", size, kv)
    if method == "bitsandbytes":
        four = section.flag("load_in_4bit", False)
        return WeightQuantization(method, "int4" if four else "int8", "bf16", 64 if four else 0, kv)
    section.note(f"quant_method {method!r} read as FP8")
    return WeightQuantization(method, "fp8", "fp8", 0, kv)


def _grouped(section: Config, method: str) -> WeightQuantization:
    """compressed-tensors and ModelOpt: the first of ``config_groups`` stands for all."""
    groups = section.section("config_groups")
    assert groups is not None
    names = list(groups.raw)
    if len(names) > 1:
        section.note(f"config_groups: {names[0]} of {len(names)} read for all matrices")
    group = groups.section(names[0]) if names else None
    weights = group.section("weights") if group else None
    inputs = group.section("input_activations") if group else None
    size = weights.count("group_size", 0) if weights else 0
    return WeightQuantization(method, _format(weights), _format(inputs), size)


def _format(part: Config | None) -> str:
    if part is None:
        return "bf16"
    name = _FORMATS.get((part.text("type", "int"), part.size("num_bits", 8)), "fp8")
    return "mxfp4" if name == "nvfp4" and part.count("group_size", 16) == 32 else name


def _kv_cache(section: Config) -> str | None:
    scheme = section.section("kv_cache_scheme")
    if scheme is not None:
        return _format(scheme)
    algorithm = section.text("kv_cache_quant_algo").lower()
    return algorithm if algorithm in ("fp8", "int8", "nvfp4") else None


def left_alone(section: Config, family: str, layers: int) -> frozenset[Kind]:
    """Kinds of matrices that the checkpoint keeps in the model dtype.

    From the module names it excludes; where those are not in the file, from what such checkpoints of the
    family are known to exclude. Approximation: a kind is judged by the last layer, and as a whole.
    """
    patterns = [str(p) for key in _PATTERN_KEYS for p in section.items(key)]
    if patterns:
        return frozenset(kind for kind in KINDS if _excluded(kind, patterns, layers - 1))
    return _known_exclusions(section, family)


def _known_exclusions(section: Config, family: str) -> frozenset[Kind]:
    method = section.text("quant_method")
    if method == "mxfp4":
        section.note("mxfp4: only the routed experts are quantised")
        return frozenset(("attention", "dense", "shared"))
    counted = any(section.has(f"{key}_count") for key in _PATTERN_KEYS)
    if not counted or method == "fp8":
        return frozenset()
    if family.startswith("kimi") and method == "compressed-tensors":
        section.note("excluded modules are not named: routed experts taken as the only quantised ones")
        return frozenset(("attention", "dense", "shared"))
    if family.startswith(("llama4", "gemma4")):
        section.note("excluded modules are not named: attention taken as unquantised, from their number")
        return frozenset(("attention",))
    section.note("excluded modules are not named: every matrix but routers and head taken as quantised")
    return frozenset()


def _excluded(kind: Kind, patterns: Iterable[str], layer: int) -> bool:
    parts = {
        "attention": ("self_attn.q_proj", "self_attn.q_b_proj", "linear_attn.in_proj_qkv", "mixer.in_proj"),
        "dense": ("mlp.gate_proj", "mlp.up_proj"),
        "experts": ("mlp.experts.0.gate_proj", "block_sparse_moe.experts.0.w1", "mlp.experts"),
        "shared": ("mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj"),
    }[kind]
    return any(_matches(f"model.layers.{layer}.{part}", pattern) for part in parts for pattern in patterns)


def _matches(module: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    if "*" in pattern:
        return fnmatch.fnmatch(module, pattern) or fnmatch.fnmatch(module, f"*.{pattern}")
    return f".{pattern}.".endswith(f".{module}.") or f".{pattern}." in f".{module}."


def mark(layer: Layer, alone: frozenset[Kind]) -> Layer:
    """Return the layer with ``Linear.quantized`` false in the kinds that are left alone."""
    mixer, ffn = layer.mixer, layer.ffn
    if "attention" in alone and isinstance(mixer, Attention | MultiHeadLatentAttention | Recurrent):
        mixer = replace(mixer, linears=_plain(mixer.linears))
    if isinstance(ffn, DenseFFN) and "dense" in alone:
        ffn = replace(ffn, linears=_plain(ffn.linears))
    if isinstance(ffn, MoEFFN):
        if "shared" in alone:
            ffn = replace(ffn, linears=_plain(ffn.linears))
        if "experts" in alone:
            ffn = replace(ffn, expert_linears=_plain(ffn.expert_linears))
    return Layer(mixer, ffn, layer.norm_params)


def _plain(linears: Iterable[Linear]) -> tuple[Linear, ...]:
    return tuple(replace(linear, quantized=False) for linear in linears)
