"""Predictions for single instructions and transfers are close to published times."""

from __future__ import annotations

import pytest

from benchmarks.validation.micro_rows import ROWS, median_error, table


def test_the_median_error_of_the_micro_rows_is_at_most_15_percent():
    assert median_error() <= 0.15, "\n" + table()


@pytest.mark.parametrize("row", [r for r in ROWS if r.is_input], ids=lambda r: r.name)
def test_rows_that_the_model_contains_are_met(row):
    assert abs(row.error) < 0.10


def test_the_table_has_a_line_for_every_row():
    text = table()
    assert all(row.name in text for row in ROWS)
    assert text.splitlines()[-1].startswith("median error of ")
