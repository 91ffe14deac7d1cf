"""The coverage table as the package carries it."""

from __future__ import annotations

from neuronjax.hardware import TARGETS
from neuronjax.report import operations as table

ROWS = {operation.name: operation for operation in table.operations()}


def test_dtypes_are_those_of_the_chip():
    add, popcnt = ROWS["stablehlo.add"], ROWS["stablehlo.popcnt"]
    assert "float8_e4m3fn" in add.dtypes(TARGETS["trn3"])
    assert "float8_e4m3fn" not in add.dtypes(TARGETS["trn2"])
    assert "complex64" in add.dtypes(TARGETS["trn2"])
    assert "tfloat32" not in add.dtypes(TARGETS["trn2"])
    assert set(popcnt.dtypes(TARGETS["trn1"])) == {
        f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32)
    }


def test_rows_can_be_selected():
    assert [row.name for row in table.select("reduce_w")] == ["stablehlo.reduce_window"]
    statuses = {row.status for row in table.select(missing=True)}
    assert statuses == {"refused", "missing"}
