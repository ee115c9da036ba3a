"""The one parser of human numbers: ``8k``, ``8K``, ``80GiB``, ``3.35TB/s``, ``250ms``, ``x1.5``, ...

Counts follow vLLM's command line: a lower-case suffix is decimal (``8k`` = 8,000; ``2m`` = 2,000,000), an
upper-case one binary (``8K`` = 8,192; ``1M`` = 1,048,576). GB is 1e9 bytes, GiB is 2**30; a bare ``G`` is
refused because it could be either. A plain number is in the SI unit (bytes, seconds, B/s, FLOP/s).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated

from annotated_types import Ge, Gt, Le
from pydantic import BeforeValidator, WithJsonSchema

from .errors import UnitError

_NUMBER = re.compile(
    r"([+-]?(?:\d{1,3}(?:,\d{3})+|\d[\d_]*|(?=\.\d))(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*(.*)", re.DOTALL
)

MOST = 2**31 - 1
"""Most things that are counted: what an engine's 32-bit tensors index [-]."""
LARGEST_BYTES = 2**60
"""Largest size, an EiB: more than any machine holds [B]."""
FASTEST_BYTES = 1e18
"""Fastest transfer, an EB/s: more than a rack's memory together [B/s]."""
LONGEST_S = 2**62 // 10**9
"""Longest time, 146 years: what a clock of 64-bit nanoseconds can tell apart [s]."""
FASTEST_RATE = 1e9
"""Most events a second: one a tick of that clock [1/s]."""
LARGEST_FACTOR = 1e12
"""Largest factor [-]."""

_COUNT = {"": 1, "k": 10**3, "K": 2**10, "Ki": 2**10, "m": 10**6, "M": 2**20, "Mi": 2**20}
_BYTE_PREFIX = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BYTE_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_BYTES = (
    {"": 1, "KB": 10**3}
    | {f"{prefix}B": scale for prefix, scale in (_BYTE_PREFIX | _BYTE_BINARY).items()}
    | {f"{prefix}b".lower(): scale for prefix, scale in (_BYTE_PREFIX | _BYTE_BINARY).items() if prefix}
)
_RATE = {"": 1} | {f"{unit}{per}": scale for unit, scale in _BYTES.items() if unit for per in ("/s", "ps")}
_SECONDS = {
    "": 1.0, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0,
}  # fmt: skip
_FLOPS = {"": 1} | {
    f"{prefix}{unit}": scale
    for prefix, scale in _BYTE_PREFIX.items()
    for unit in ("FLOP/s", "FLOPS", "FLOPs", "FLOP", "OP/s", "OPS")
}
_HERTZ = {"": 1} | {f"{prefix}Hz": scale for prefix, scale in _BYTE_PREFIX.items()}
_WATTS = {"": 1} | {f"{prefix}W": scale for prefix, scale in _BYTE_PREFIX.items()}
_FACTOR = {"": 1.0, "x": 1.0, "X": 1.0, "%": 0.01}


def parse_count(value: object) -> int:
    """Read a number of things (tokens, requests, sequences) [-].

    Raises
    ------
    UnitError : not a number, negative, not finite, not whole, or with a suffix that is not a count's

    >>> parse_count("8k"), parse_count("8K"), parse_count("25.6k")
    (8000, 8192, 25600)
    """
    number = _read(value, _COUNT, "count", "8000, 8k (8,000), 8K (8,192)")
    if not isinstance(number, int):
        raise UnitError(
            f"{value!r} is not a whole number; allowed: a count such as 8000, 8k (8,000) or 8K (8,192)"
        )
    return number


def parse_bytes(value: object) -> int:
    """Read a size in bytes; fractions of a byte are rounded [B].

    >>> parse_bytes("80GiB"), parse_bytes("80GB")
    (85899345920, 80000000000)
    """
    return round(_read(value, _BYTES, "size in bytes", "80GiB, 80GB, 512MiB"))


def parse_rate_bytes(value: object) -> float:
    """Read a rate of bytes [B/s].

    >>> parse_rate_bytes("3.35TB/s")
    3350000000000.0
    """
    return float(_read(value, _RATE, "rate", "3.35TB/s, 900GB/s"))


def parse_seconds(value: object) -> float:
    """Read a duration [s].

    >>> parse_seconds("250ms")
    0.25
    """
    return float(_read(value, _SECONDS, "duration", "250ms, 1.5s, 20us"))


def parse_flops(value: object) -> float:
    """Read a compute rate; integer operations count as FLOP [FLOP/s].

    >>> parse_flops("989.4TFLOP/s")
    989400000000000.0
    """
    return float(_read(value, _FLOPS, "compute rate", "989TFLOP/s, 2.25PFLOP/s"))


def parse_hertz(value: object) -> float:
    """Read a clock rate [Hz].

    >>> parse_hertz("1980MHz")
    1980000000.0
    """
    return float(_read(value, _HERTZ, "clock", "1980MHz, 1.98GHz"))


def parse_watts(value: object) -> float:
    """Read a power [W]."""
    return float(_read(value, _WATTS, "power", "700W, 1.2kW"))


def parse_factor(value: object) -> float:
    """Read a factor or a share [-].

    >>> parse_factor("x1.5"), parse_factor("1.5x"), parse_factor("25%"), parse_factor(2)
    (1.5, 1.5, 0.25, 2.0)
    """
    bare = re.sub(r"^\s*[xX]", "", value) if isinstance(value, str) else value
    return float(_read(bare, _FACTOR, "factor", "x1.5, 1.5, 25%", shown=value))


def is_factor(value: object) -> bool:
    """Tell whether ``value`` is spelled as a factor (``x1.5``, ``1.5x``) rather than as a quantity."""
    return isinstance(value, str) and re.fullmatch(r"\s*(?:[xX].*|[\d.,_]+\s*[xX])\s*", value) is not None


def format_bytes(n: float) -> str:
    """Write a size for people, in binary units.

    >>> format_bytes(47663476736), format_bytes(512)
    ('44.39 GiB', '512 B')
    """
    for unit, scale in (("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(n) >= scale:
            return f"{n / scale:.2f} {unit}"
    return f"{n:.0f} B"


def format_seconds(t: float) -> str:
    """Write a duration for people.

    >>> format_seconds(0.01153), format_seconds(75), format_seconds(2e-6)
    ('11.5 ms', '75.0 s', '2.00 us')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(t) >= scale:
            return f"{_three_digits(t / scale)} {unit}"
    return f"{_three_digits(t * 1e9)} ns"


def format_count(n: int) -> str:
    """Write a count for people.

    >>> format_count(1048576)
    '1,048,576'
    """
    return f"{n:,}"


def format_rate_bytes(rate: float) -> str:
    """Write a rate of bytes for people, in decimal units as datasheets do.

    >>> format_rate_bytes(3.35e12)
    '3.35 TB/s'
    """
    return _decimal(rate, "B/s")


def format_flops(rate: float) -> str:
    """Write a compute rate for people.

    >>> format_flops(989.4e12)
    '989 TFLOP/s'
    """
    return _decimal(rate, "FLOP/s")


def _decimal(value: float, unit: str) -> str:
    for prefix in "PTGMk":
        if abs(value) >= _BYTE_PREFIX[prefix]:
            return f"{_three_digits(value / _BYTE_PREFIX[prefix])} {prefix}{unit}"
    return f"{_three_digits(value)} {unit}"


def _three_digits(value: float) -> str:
    digits = 2 - (math.floor(math.log10(abs(value))) if value else 0)
    return f"{value:.{min(max(digits, 0), 2)}f}"


def _read(
    value: object, units: Mapping[str, float], what: str, examples: str, shown: object = None
) -> int | float:
    """Read ``value`` as a number times one of ``units``; an int where the result is whole and exact."""
    shown = value if shown is None else shown
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UnitError(f"{shown!r} is not a {what}; allowed: {examples}")
    if isinstance(value, str):
        matched = _NUMBER.fullmatch(value.strip())
        if matched is None:
            raise UnitError(f"{shown!r} is not a {what}; allowed: {examples}")
        digits, unit = matched[1].replace(",", "").replace("_", ""), matched[2].strip()
    else:
        digits, unit = str(value), ""
    if unit not in units:
        raise UnitError(_wrong_unit(shown, unit, what, units, examples))
    return _scaled(digits, units[unit], what, examples, shown)


def _scaled(digits: str, scale: float, what: str, examples: str, shown: object) -> int | float:
    if isinstance(scale, int) and re.fullmatch(r"[+-]?\d+", digits):
        number: int | float = int(digits) * scale
    else:
        number = float(digits) * scale
        # 25.6k is 25,600 although 25.6 has no exact binary form
        if (
            isinstance(scale, int)
            and abs(number) < 2**53
            and abs(number - round(number)) <= 1e-9 * abs(number)
        ):
            number = round(number)
    if not math.isfinite(number) or number < 0:
        raise UnitError(f"{shown!r} is not a {what}: it must be finite and not negative; allowed: {examples}")
    return number


def _wrong_unit(shown: object, unit: str, what: str, units: Mapping[str, float], examples: str) -> str:
    if unit in ("G", "T", "g", "t") or (unit in ("K", "M", "k", "m") and units is not _COUNT):
        hint = f"a bare {unit!r} is ambiguous"
    elif re.fullmatch(r"[KMGTP]i?b(?:/s|ps|it/s)?", unit):
        hint = f"{unit!r} means bits"
    else:
        hint = f"unknown unit {unit!r}"
    return f"{shown!r} is not a {what}: {hint}; allowed: {examples}"


def _schema(pattern_hint: str) -> WithJsonSchema:
    return WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}], "description": pattern_hint}
    )


Count = Annotated[
    int, BeforeValidator(parse_count), Ge(0), Le(MOST), _schema("a count: 8000, 8k = 8,000, 8K = 8,192")
]
Unbounded = Annotated[
    int, BeforeValidator(parse_count), Gt(0), _schema("a count above 0: 256, 8k = 8,000, 8K = 8,192")
]
"""A count above 0 that whoever uses it bounds."""
PositiveCount = Annotated[Unbounded, Le(MOST)]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Ge(0), Le(LARGEST_BYTES), _schema("bytes: 80GiB, 80GB")]
RateBytes = Annotated[
    float, BeforeValidator(parse_rate_bytes), Ge(0), Le(FASTEST_BYTES), _schema("bytes a second: 3.35TB/s")
]
Seconds = Annotated[
    float, BeforeValidator(parse_seconds), Ge(0), Le(LONGEST_S), _schema("a duration: 250ms, 1.5s")
]
Flops = Annotated[float, BeforeValidator(parse_flops), Ge(0), _schema("FLOP a second: 989TFLOP/s")]
Hertz = Annotated[float, BeforeValidator(parse_hertz), Ge(0), _schema("a clock: 1980MHz")]
Watts = Annotated[float, BeforeValidator(parse_watts), Ge(0), _schema("a power: 700W")]
Rate = Annotated[float, Gt(0), Le(FASTEST_RATE)]
Factor = Annotated[
    float, BeforeValidator(parse_factor), Ge(0), Le(LARGEST_FACTOR), _schema("a factor: x1.5, 1.5, 25%")
]
