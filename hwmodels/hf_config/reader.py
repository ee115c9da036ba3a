"""From ``config.json`` to ``ModelSpec``: find the text part, ask its family for the layers, add the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import cast

from ..errors import ModelConfigError
from ..plainjson import plain_json
from ..spec import Linear, ModelSpec, WeightQuantization
from .blocks import group_layers
from .gemma import altup_linears, per_layer_inputs
from .keys import Config
from .layers import layers_of
from .mixers import heads_of
from .quantization import Kind, left_alone, mark, read_quantization
from .traits import FAMILIES, LLAMA, Traits, family_of
from .vision import vision_params

MOST_LAYERS = 10_000
"""More layers than any model has: a config beyond it is damaged."""


def load_json(path: Path) -> Mapping[str, object]:
    """Parse a config file; ``Infinity`` and ``NaN`` are accepted, as published files hold them."""
    file = path / "config.json" if path.is_dir() else path
    try:
        raw = cast("object", plain_json(file.read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise ModelConfigError(f"{file}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise ModelConfigError(f"{file}: not JSON ({error})") from error
    if not isinstance(raw, dict):
        raise ModelConfigError(
            f"{file}: holds a {type(raw).__name__}; allowed: a JSON object (a config.json)"
        )
    return cast("Mapping[str, object]", raw)


def read_config(source: str | Path | Mapping[str, object], id: str | None = None) -> ModelSpec:
    """Read a model's configuration.

    Parameters
    ----------
    source : path of a ``config.json`` (or of the folder it is in), or its parsed content
    id : short name; defaults to the file's (or folder's) name

    Returns
    -------
    ModelSpec
        With ``notes`` on everything that was assumed.

    Raises
    ------
    ModelConfigError
        Not JSON, or a key is missing or has an impossible value.
    """
    if isinstance(source, Mapping):
        raw, where, name = source, f"config of {id}" if id else "config", id or "model"
    else:
        path = Path(source)
        raw, where = _with_sidecar(load_json(path), path), str(path)
        name = id or (path.parent.name if path.name == "config.json" else path.stem)
    return _build(Config(raw, where), name)


def _with_sidecar(raw: Mapping[str, object], path: Path) -> Mapping[str, object]:
    """Add the quantization that ModelOpt writes beside a config (``hf_quant_config.json``), if any."""
    folder = path if path.is_dir() else path.parent
    sidecar = folder / "hf_quant_config.json"
    if raw.get("quantization_config") is not None or not sidecar.is_file():
        return raw
    section = load_json(sidecar).get("quantization")
    if not isinstance(section, dict):
        return raw
    return {**raw, "quantization_config": {"quant_method": "modelopt", **cast("dict[str, object]", section)}}


def read_bundled(path: Path) -> ModelSpec:
    """Read an entry of ``hwmodels/models``: a config of our own selection of keys under ``config``."""
    return _read_bundled(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _read_bundled(path: Path, _mtime_ns: int) -> ModelSpec:
    entry = load_json(path)
    return read_config(cast("Mapping[str, object]", entry["config"]), path.stem)


def _build(whole: Config, name: str) -> ModelSpec:
    config = whole.section("text_config") or whole
    family, traits = _family(whole, config)
    if config is not whole and family == "llama" and not config.has("hidden_size"):
        config = _llama_defaults(config)
    count = config.size("num_hidden_layers")
    if count > MOST_LAYERS:
        raise ModelConfigError(f"{config.where}: num_hidden_layers is {count}; allowed: 1 to {MOST_LAYERS}")
    quantization, alone = _quantization(whole, config, family)
    layers, order = group_layers(mark(layer, alone) for layer in layers_of(config, traits, family))
    hidden = config.size("hidden_size")
    vocab = _vocab(config, whole)
    linears, lookup, other = _outside_layers(config, traits, family)
    return ModelSpec(
        id=name,
        architecture=family,
        hidden=hidden,
        vocab=vocab,
        max_position=_max_position(config),
        layers=layers,
        tied_embeddings=_tied(whole, config, traits),
        embedding_dim=config.size("word_embed_proj_dim", hidden),
        other_params=other + (vocab if traits.head_bias or config.flag("lm_head_bias", False) else 0),
        vision_params=vision_params(whole, hidden),
        rotary_dim=_rotary_dim(config, traits, family),
        dtype=_dtype(whole, config),
        quantization=quantization,
        notes=tuple(whole.notes),
        linears=linears,
        per_layer_embedding_params=lookup,
        order=order,
        mtp_layers=config.count("num_nextn_predict_layers", config.count("mtp_num_hidden_layers", 0)),
    )


def _family(whole: Config, config: Config) -> tuple[str, Traits]:
    named = [config.text("model_type"), whole.text("model_type")]
    named += [family_of(str(name)) for part in (config, whole) for name in part.items("architectures")]
    for family in named:
        if family in FAMILIES:
            if family not in named[:2]:
                config.note(f"no known model_type: taken as {family!r} from architectures")
            return family, FAMILIES[family]
    family = next((name for name in named if name), "")
    if any("mamba" in key or "linear_attn" in key or "ssm" in key for key in config.raw):
        config.note(
            "keys of recurrent layers were found and not understood: every layer is read as attention"
        )
    config.note(
        (f"unknown model_type {family!r}" if family else "no model_type")
        + ": read by its keys as a Llama-like model (no biases but declared ones, two norms a layer)"
    )
    return family, LLAMA


def _llama_defaults(config: Config) -> Config:
    """LLaVA names only what differs from the class defaults of Llama, which are those of Llama-2-7B."""
    config.note("sizes not given: the class defaults of Llama (those of Llama-2-7B) taken")
    defaults = {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008,
        "vocab_size": 32000, "max_position_embeddings": 2048,
    }  # fmt: skip
    return Config(defaults | dict(config.raw), config.where, config.notes)


def _quantization(
    whole: Config, config: Config, family: str
) -> tuple[WeightQuantization | None, frozenset[Kind]]:
    section = whole.section("quantization_config") or config.section("quantization_config")
    if section is None:
        return None, frozenset()
    kinds = left_alone(section, family, config.size("num_hidden_layers"))
    quantization = read_quantization(section)
    if family == "deepseek_v4" and quantization.weights == "fp8":
        config.note("routed experts are stored in mxfp4, everything else in fp8, as published")
        quantization = replace(quantization, expert_weights="mxfp4")
    return quantization, kinds


def _vocab(config: Config, whole: Config) -> int:
    if config.has("vocab_size"):
        return config.size("vocab_size")
    if whole.has("vocab_size"):
        return whole.size("vocab_size")
    if config.has("intermediate_size") or config.has("moe_intermediate_size"):
        return config.size("vocab_size")  # a missing key, and the error that says so
    return 0  # attention fields alone: ffns_of has left a note


def _max_position(config: Config) -> int:
    if not config.has("max_position_embeddings"):
        config.note("max_position_embeddings not given: 2048 taken")
    return config.size("max_position_embeddings", 2048)


def _tied(whole: Config, config: Config, traits: Traits) -> bool:
    if config.has("tie_word_embeddings"):
        return config.flag("tie_word_embeddings", traits.tied)
    return whole.flag("tie_word_embeddings", traits.tied)


def _outside_layers(config: Config, traits: Traits, family: str) -> tuple[tuple[Linear, ...], int, int]:
    """Return (matrices, lookup-table parameters, other parameters) outside the layers, head's bias apart."""
    hidden = config.size("hidden_size")
    linears, lookup, other = per_layer_inputs(config)
    if family.startswith("gemma3n"):
        linears += altup_linears(config)
    embedding = config.size("word_embed_proj_dim", hidden)
    if embedding != hidden:
        linears += (
            Linear("project_in", hidden, embedding, "replicated", quantized=False),
            Linear("project_out", embedding, hidden, "replicated", quantized=False),
        )
    if traits.final_norm and config.flag("do_layer_norm_before", True):
        other += traits.norm_width(hidden)
    if traits.embedding_norm:
        other += traits.norm_width(hidden)
    learned = config.flag("learned_pos_emb", True) and not config.flag("alibi", traits.alibi)
    if traits.positions is not None and learned:
        other += (_max_position(config) + traits.positions) * hidden
    streams = config.count("hc_mult", 0)
    if streams:
        other += streams * streams * hidden + streams + 1  # the head's mixing matrix
    return linears, lookup, other


def _rotary_dim(config: Config, traits: Traits, family: str) -> int:
    if not traits.rotary_share or config.flag("alibi", traits.alibi):
        return 0
    if config.has("qk_rope_head_dim"):
        return config.size("qk_rope_head_dim")
    if config.has("rotary_dim"):
        return config.size("rotary_dim")
    parameters = config.section("rope_parameters")
    share = config.number("partial_rotary_factor", config.number("rotary_pct", traits.rotary_share))
    if parameters is not None:
        share = parameters.number("partial_rotary_factor", share)
    return int(heads_of(config, family)[2] * share)


def _dtype(whole: Config, config: Config) -> str:
    for part in (config, whole):
        if part.has("torch_dtype"):
            return part.text("torch_dtype").removeprefix("torch.")
    config.note("torch_dtype not given: bfloat16 taken")
    return "bfloat16"
