"""Human numbers: one meaning each, and a one-line error for everything else."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels import units
from membound.hwmodels.errors import UnitError
from pydantic import BaseModel, ValidationError


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8k", 8000),
        ("8K", 8192),
        ("25.6k", 25600),
        ("1.5K", 1536),
        ("2m", 2_000_000),
        ("1M", 1_048_576),
        (7, 7),
        ("8,192", 8192),
        ("1_000", 1000),
        (8000.0, 8000),
        ("4Ki", 4096),
        (" 12 ", 12),
        ("0", 0),
        ("1e3", 1000),
    ],
)
def test_a_lower_case_count_is_decimal_and_an_upper_case_one_binary(text, count):
    assert units.parse_count(text) == count
    assert isinstance(units.parse_count(text), int)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 * 2**30),
        ("80GB", 80 * 10**9),
        ("80gb", 80 * 10**9),
        ("512MiB", 2**29),
        ("1.5GiB", 3 * 2**29),
        ("64kB", 64_000),
        ("64KB", 64_000),
        ("64KiB", 65_536),
        (1024, 1024),
        ("25250627584B", 25_250_627_584),
    ],
)
def test_gb_is_decimal_and_gib_binary(text, size):
    assert units.parse_bytes(text) == size


def test_rates_times_and_factors_are_si():
    assert units.parse_rate_bytes("3.35TB/s") == 3.35e12
    assert units.parse_rate_bytes("900GBps") == 9e11
    assert units.parse_seconds("250ms") == 0.25
    assert units.parse_seconds("20us") == pytest.approx(2e-5)
    assert units.parse_seconds("2min") == 120.0
    assert units.parse_flops("989.4TFLOP/s") == 989.4e12
    assert units.parse_flops("2.25 PFLOPS") == 2.25e15
    assert units.parse_hertz("1980MHz") == 1.98e9
    assert units.parse_watts("1.2kW") == 1200
    assert [units.parse_factor(text) for text in ("x1.5", "1.5x", "150%", 1.5)] == [1.5] * 4


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -1, "-1", "nan", "inf", "", "k", None, True, [1], "1e999"]
)
@pytest.mark.parametrize(
    "parse",
    [
        units.parse_count,
        units.parse_bytes,
        units.parse_rate_bytes,
        units.parse_seconds,
        units.parse_flops,
        units.parse_factor,
    ],
)
def test_nan_infinite_negative_and_non_numbers_are_refused_in_one_line(parse, bad):
    with pytest.raises(UnitError) as caught:
        parse(bad)
    assert "\n" not in str(caught.value)
    assert "allowed" in str(caught.value)


@pytest.mark.parametrize(
    ("parse", "bad", "hint"),
    [
        (units.parse_bytes, "80G", "ambiguous"),
        (units.parse_bytes, "8K", "ambiguous"),
        (units.parse_bytes, "80Gb", "bits"),
        (units.parse_rate_bytes, "100Gbit/s", "bits"),
        (units.parse_rate_bytes, "3TB", "unknown unit"),
        (units.parse_seconds, "3 parsecs", "unknown unit"),
        (units.parse_count, "8.5", "whole"),
        (units.parse_count, "80GiB", "unknown unit"),
        (units.parse_count, "1G", "ambiguous"),
    ],
)
def test_a_wrong_unit_is_named(parse, bad, hint):
    with pytest.raises(UnitError, match=hint):
        parse(bad)


@given(st.integers(0, 2**50))
@settings(deadline=None)
def test_plain_numbers_are_read_back_exactly(n):
    assert units.parse_count(n) == units.parse_count(str(n)) == n
    assert units.parse_bytes(f"{n}B") == n


@given(st.integers(0, 10**6), st.sampled_from(["kB", "MB", "GB", "KiB", "MiB", "GiB"]))
@settings(deadline=None)
def test_a_prefix_multiplies_exactly(n, unit):
    assert units.parse_bytes(f"{n}{unit}") == n * units.parse_bytes(f"1{unit}")


@given(st.floats(1e3, 1e16))
@settings(deadline=None)
def test_a_written_size_reads_back_within_its_two_decimals(n):
    assert units.parse_bytes(units.format_bytes(n)) == pytest.approx(n, rel=0.006)


def test_numbers_for_people_have_their_unit():
    assert units.format_bytes(47_663_476_736) == "44.39 GiB"
    assert units.format_bytes(0) == "0 B"
    assert units.format_seconds(0.0115) == "11.5 ms"
    assert units.format_seconds(0) == "0.00 ns"
    assert units.format_seconds(123.4) == "123 s"
    assert units.format_count(1_048_576) == "1,048,576"
    assert units.format_rate_bytes(3.35e12) == "3.35 TB/s"
    assert units.format_flops(989.4e12) == "989 TFLOP/s"


def test_scenario_fields_take_human_numbers_and_publish_both_forms():
    class Sample(BaseModel):
        tokens: units.Count
        seqs: units.PositiveCount = 1
        pool: units.Bytes = 0
        wait: units.Seconds = 0.0

    assert Sample(tokens="32k", pool="80GiB", wait="250ms").model_dump() == {
        "tokens": 32_000, "seqs": 1, "pool": 85_899_345_920, "wait": 0.25,
    }  # fmt: skip
    with pytest.raises(ValidationError, match="not a count"):
        Sample(tokens="many")
    with pytest.raises(ValidationError):
        Sample(tokens=1, seqs=0)
    assert {kind["type"] for kind in Sample.model_json_schema()["properties"]["tokens"]["anyOf"]} == {
        "number",
        "string",
    }
