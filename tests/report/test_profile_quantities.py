"""Numbers with units."""

from __future__ import annotations

import pytest

from neuronjax.report import quantities


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1.5, "1.50 s"),
        (0.0012345, "1.23 ms"),
        (999.7e-6, "1,000 µs"),
        (250e-6, "250 µs"),
        (12.3e-9, "12.3 ns"),
        (4e-10, "0.4 ns"),
        (7200, "7,200 s"),
    ],
)
def test_seconds(value, text):
    assert quantities.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (100, "100 B"),
        (1024, "1 KiB"),
        (1023.9, "1 KiB"),
        (1.5 * 2**30, "1.50 GiB"),
        (96 * 2**30, "96 GiB"),
    ],
)
def test_binary(value, text):
    assert quantities.binary(value).replace("1.00", "1") == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0, "FLOP", "0"), (12, "", "12"), (1.5e12, "FLOP", "1.50 TFLOP")],
)
def test_decimal(value, unit, text):
    assert quantities.decimal(value, unit) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0.0 %"), (0.0001, "<0.1 %"), (0.1234, "12.3 %"), (1, "100.0 %")],
)
def test_percent(share, text):
    assert quantities.percent(share) == text


@pytest.mark.parametrize(
    ("longest", "name"),
    [(3.0, "s"), (1.9, "ms"), (3e-6, "µs"), (1e-9, "ns"), (0, "ns")],
)
def test_time_unit(longest, name):
    assert quantities.time_unit(longest)[1] == name
