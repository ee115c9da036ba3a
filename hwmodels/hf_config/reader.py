"""From ``config.json`` to ``ModelSpec``: find the text part, ask its family for the layers, add the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from ..errors import ModelConfigError
from ..spec import ModelSpec
from .blocks import group_layers
from .dense import dense_layers, heads_of
from .keys import Config
from .traits import FAMILIES, LLAMA, Traits


def load_json(path: Path) -> Mapping[str, object]:
    """Parse a config file; ``Infinity`` and ``NaN`` are accepted, as published files hold them."""
    file = path / "config.json" if path.is_dir() else path
    try:
        raw = cast("object", json.loads(file.read_text(encoding="utf-8-sig")))
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
        raw, where = load_json(path), str(path)
        name = id or (path.parent.name if path.name == "config.json" else path.stem)
    return _build(Config(raw, where), name)


def read_bundled(path: Path) -> ModelSpec:
    """Read an entry of ``hwmodels/models``: a config of our own selection of keys under ``config``."""
    entry = load_json(path)
    return read_config(cast("Mapping[str, object]", entry["config"]), path.stem)


def _build(whole: Config, name: str) -> ModelSpec:
    config = whole.section("text_config") or whole
    family = config.text("model_type") or whole.text("model_type")
    traits = _traits(config, family)
    layers, order = group_layers(dense_layers(config, traits, family))
    hidden = config.size("hidden_size")
    vocab = config.size("vocab_size")
    max_position = config.size("max_position_embeddings")
    return ModelSpec(
        id=name,
        architecture=family,
        hidden=hidden,
        vocab=vocab,
        max_position=max_position,
        layers=layers,
        tied_embeddings=config.flag("tie_word_embeddings", traits.tied),
        embedding_dim=hidden,
        other_params=traits.norm_width(hidden),
        rotary_dim=int(heads_of(config, family)[2] * config.number("partial_rotary_factor", 1.0)),
        dtype=config.text("torch_dtype", "bfloat16"),
        notes=tuple(config.notes),
        order=order,
    )


def _traits(config: Config, family: str) -> Traits:
    traits = FAMILIES.get(family)
    if traits is None:
        config.note(f"unknown model_type {family!r}: read by its keys as a Llama-like model")
        return LLAMA
    return traits
