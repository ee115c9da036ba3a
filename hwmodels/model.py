"""The models at hand: bundled ones by id or Hugging Face name, others by the path of a ``config.json``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

from .catalog import find, ids
from .errors import CatalogError
from .hf_config import read_bundled, read_config
from .spec import ModelSpec as ModelSpec

MODELS = Path(__file__).parent / "models"


def load_model(name: str | Path, relative_to: Path | None = None, where: str | None = None) -> ModelSpec:
    """Return a bundled model by id, alias or Hugging Face name, or the model of a ``config.json``.

    Parameters
    ----------
    name : ``llama-3.1-8b``, ``meta-llama/Llama-3.1-8B``, or a path to a ``config.json`` or its folder
    relative_to : folder that a relative path starts from; default: the working folder
    where : where the name was written, for the error text

    Raises
    ------
    CatalogError
        No such model (the nearest is named) and no such file.
    ModelConfigError
        The file cannot be read as a model.

    Examples
    --------
    >>> load_model("llama-3.1-8b").n_layers
    32
    """
    try:
        path = find(
            "model", name, MODELS, suffix=".json", aliases=model_aliases, relative_to=relative_to, where=where
        )
    except CatalogError:
        folder = (relative_to or Path()) / os.path.expanduser(name)
        if not os.path.isfile(folder / "config.json"):
            raise
        return read_config(folder)
    return read_bundled(path) if path.parent == MODELS else read_config(path)


def list_models() -> list[str]:
    """List the ids of the bundled models, sorted."""
    return ids(MODELS, ".json")


def model_aliases(path: Path) -> list[str]:
    """Read the other names of one bundled model."""
    return cast("list[str]", json.loads(path.read_text(encoding="utf-8"))["aliases"])
