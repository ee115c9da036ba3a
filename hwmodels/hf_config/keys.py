"""Typed access to a ``config.json`` under the many names its keys have had."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast, final

from ..errors import ModelConfigError, nearest

# One meaning, many names: first today's, then those of GPT-2, MPT, GLM, OPT, ...
ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("n_head_kv", "num_kv_heads", "multi_query_group_num", "num_attention_groups"),
    "head_dim": ("attention_head_dim", "kv_channels"),
    "intermediate_size": ("ffn_dim", "n_inner", "ffn_hidden_size"),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length", "n_ctx"),
    "sliding_window": ("sliding_window_size",),
    "num_experts": ("n_routed_experts", "num_local_experts", "moe_num_experts"),
    "num_experts_per_tok": ("experts_per_token", "top_k_experts", "moe_top_k"),
    "torch_dtype": ("dtype",),
}


@final
class Config:
    """Read-only view of one (sub)configuration; ``null`` counts as absent, missing keys get a one-line error.

    Parameters
    ----------
    raw : the parsed object
    where : file (and section) it came from, for messages
    notes : what was assumed so far; shared by the sections of one file
    """

    __slots__ = ("notes", "raw", "where")

    def __init__(self, raw: Mapping[str, object], where: str, notes: list[str] | None = None) -> None:
        self.raw = raw
        self.where = where
        self.notes: list[str] = [] if notes is None else notes

    def note(self, text: str) -> None:
        """Record an assumption (once)."""
        if text not in self.notes:
            self.notes.append(text)

    def get(self, key: str) -> object:
        """Return the first value under ``key`` or one of its old names that is not null, or None."""
        for name in (key, *ALIASES.get(key, ())):
            value = self.raw.get(name)
            if value is not None:
                return value
        return None

    def has(self, *keys: str) -> bool:
        """Whether every one of the keys has a value."""
        return all(self.get(key) is not None for key in keys)

    def _missing(self, key: str) -> ModelConfigError:
        old = ALIASES.get(key, ())
        match = nearest(key, self.raw)
        return ModelConfigError(
            f"{self.where}: key {key!r} is missing"
            + (f" (old names: {', '.join(old)})" if old else "")
            + (f"; nearest key there: {match!r}" if match else "")
        )

    def _wrong(self, key: str, value: object, allowed: str) -> ModelConfigError:
        return ModelConfigError(f"{self.where}: {key} is {value!r}; allowed: {allowed}")

    def count(self, key: str, default: int | None = None) -> int:
        """Return a whole number >= 0, or the default; a missing key without a default is an error."""
        return self._whole(key, default, 0)

    def size(self, key: str, default: int | None = None) -> int:
        """Return a whole number >= 1, or the default."""
        return self._whole(key, default, 1)

    def _whole(self, key: str, default: int | None, least: int) -> int:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise self._missing(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._wrong(key, value, f"a whole number, {least} or more")
        return value

    def number(self, key: str, default: float) -> float:
        """Return a number, or the default."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(key, value, "a finite number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false, or the default."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str = "") -> str:
        """Return a word, or the default."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._wrong(key, value, "a word")
        return value

    def items(self, key: str) -> list[object]:
        """Return a list; empty where the key is absent."""
        value = self.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(key, value, "a list")
        return cast("list[object]", value)

    def counts(self, key: str, layers: int = 0) -> list[int]:
        """Return a list of whole numbers, one for each of ``layers`` where that is given; empty if absent."""
        values = self.per_layer(key, layers) if layers else self.items(key)
        numbers = [value for value in values if isinstance(value, int) and value >= 0]
        if len(numbers) != len(values):
            raise self._wrong(key, values, "a list of whole numbers, 0 or more")
        return numbers

    def per_layer(self, key: str, layers: int) -> list[object]:
        """Return a list with (at least) one entry for each layer; empty where the key is absent."""
        values = self.items(key)
        if values and len(values) < layers:
            raise self._wrong(key, f"a list of {len(values)}", f"one entry for each of {layers} layers")
        return values[:layers]

    def section(self, key: str) -> Config | None:
        """Return a nested object as a Config, or None."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "an object")
        return Config(cast("Mapping[str, object]", value), f"{self.where} ({key})", self.notes)
