"""The one reader of JSON that others wrote: whatever is wrong with it is a ValueError."""

from __future__ import annotations

import json
from typing import Any


def plain_json(text: str) -> Any:
    """Read a JSON document.

    Raises
    ------
    ValueError : not JSON, a number of thousands of digits, or nested deeper than can be read
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep to be read") from None
