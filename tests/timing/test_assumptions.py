"""The figures of the time model can be listed, and each says where it is from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neuronjax.timing import (
    assumptions,
    blocking,
    division,
    flattening,
    layout,
    pricing,
    sbuf_allocation,
    schedule,
    tiling,
)
from neuronjax.timing.assumptions import CONSTANTS
from neuronjax.timing.constant import Constant
from neuronjax.timing.planning_constants import PLANNING_CONSTANTS

PLANNING = (
    blocking,
    division,
    flattening,
    layout,
    pricing,
    sbuf_allocation,
    schedule,
    tiling,
)


def test_every_figure_is_listed_under_its_name():
    own = {n: v for n, v in vars(assumptions).items() if isinstance(v, Constant)}
    assert own == CONSTANTS
    assert all(name == constant.name for name, constant in CONSTANTS.items())


def test_every_figure_has_a_unit_and_a_source():
    for constant in CONSTANTS.values():
        assert constant.unit, constant.name
        assert constant.is_assumption or "[" in constant.source or constant.source, (
            constant.name
        )


def test_what_was_fitted_names_its_measurement():
    fitted = {c.name: c.fitted_to for c in CONSTANTS.values() if c.fitted_to}
    assert set(fitted) == {
        "ACCESS_CLOCK",
        "DMA_ELEMENT",
        "HBM_LATENCY",
        "VISIBLE_STARTS",
    }
    assert all("trn" in measurement for measurement in fitted.values())


def test_every_figure_is_used_by_a_rule():
    here = Path(assumptions.__file__)
    rules = "".join(
        path.read_text() for path in here.parent.glob("*.py") if path != here
    )
    assert [name for name in CONSTANTS if f".{name}" not in rules] == []


#: "#: ... ASSUMPTION ..." in front of NAME = ...
_ASSUMED = re.compile(
    r"^#: (?:[^\n]*\n#: )*?[^\n]*ASSUMPTION[^\n]*\n(?:#:[^\n]*\n)*([A-Z_]+) = [\d.]",
    re.MULTILINE,
)


def test_every_assumed_number_of_the_planning_is_listed():
    here = Path(assumptions.__file__).parent
    found = {n for p in here.glob("*.py") for n in _ASSUMED.findall(p.read_text())}
    assert {"RESIDENT_SHARE", "FEW_TILES", "BLOCK_K", "CARRY_SHARE"} <= found
    assert found - PLANNING_CONSTANTS.keys() == set()


@pytest.mark.parametrize("module", PLANNING, ids=lambda m: m.__name__)
def test_every_number_with_a_name_is_listed_with_its_value(module):
    values = {
        name: value
        for name, value in vars(module).items()
        if name.isupper() and not name.startswith("_") and type(value) in (int, float)
    }
    listed = {n: c.value for n, c in PLANNING_CONSTANTS.items() if n in values}
    assert listed == values
