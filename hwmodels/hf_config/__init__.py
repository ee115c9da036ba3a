"""Read a Hugging Face ``config.json`` into a ``ModelSpec``, for every family and every age of key names."""

from __future__ import annotations

from .reader import read_bundled, read_config

__all__ = ["read_bundled", "read_config"]
