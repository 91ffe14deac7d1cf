"""Events as rows, in CSV and Parquet."""

from __future__ import annotations

import builtins
import csv

import pytest

from neuronjax.errors import UnsupportedError
from neuronjax.report.profile_events import (
    COLUMNS,
    event_rows,
    write_csv,
    write_parquet,
)
from tests.report.timelines import EXAMPLE


def test_rows_have_every_column():
    assert all(tuple(row) == COLUMNS for row in map(_ordered, event_rows(EXAMPLE)))


def _ordered(row):
    assert row.keys() == set(COLUMNS)
    return {name: row[name] for name in COLUMNS}


def test_a_row():
    rows = list(event_rows(EXAMPLE))
    weights, matmul = rows[0], rows[3]
    assert (weights["engine"], weights["dma_reason"]) == ("dma", "weight")
    assert (weights["hbm_read_bytes"], weights["flops"]) == (4000, 0)
    assert matmul["op"] == "nc_matmul"
    assert matmul["source_location"] == "train.py:3"
    assert (matmul["module"], matmul["phase"]) == ("mlp", "backward")
    assert (matmul["count"], matmul["flops"]) == (4, 500)
    assert matmul["duration_ns"] == pytest.approx(3000)


def test_csv(tmp_path):
    path = tmp_path / "events.csv"
    write_csv(EXAMPLE, path)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == len(EXAMPLE.events)
    assert sum(int(row["hbm_read_bytes"]) for row in rows) == 5000


def test_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "events.parquet"
    write_parquet(EXAMPLE, path)
    found = parquet.read_table(path)
    assert tuple(found.column_names) == COLUMNS
    rows = list(event_rows(EXAMPLE))
    assert found.to_pylist() == rows


def test_parquet_without_pyarrow_says_what_to_do(tmp_path, without):
    without("pyarrow")
    with pytest.raises(UnsupportedError, match="pip install pyarrow"):
        write_parquet(EXAMPLE, tmp_path / "events.parquet")


@pytest.fixture
def without(monkeypatch):
    """Makes imports of a package fail as if it were not installed."""
    real = builtins.__import__

    def hide(package):
        def failing(name, *rest, **options):
            if name.partition(".")[0] == package:
                raise ImportError(f"No module named {name!r}")
            return real(name, *rest, **options)

        monkeypatch.setattr(builtins, "__import__", failing)

    return hide
