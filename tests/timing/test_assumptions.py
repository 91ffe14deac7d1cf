"""The figures of the time model can be listed, and each says where it is from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neuronjax.timing import assumptions
from neuronjax.timing.assumptions import (
    COLLECTIVE_CONSTANTS,
    CONSTANTS,
    PLANNING_CONSTANTS,
    Constant,
)

#: Numbers that are definitions, or limits of this program and not of a machine.
NO_FIGURES = {"MANY", "MILLION", "MOST_INSTRUCTIONS", "QUARTER", "SECONDS_PER_HOUR"}
LISTS = (CONSTANTS, PLANNING_CONSTANTS, COLLECTIVE_CONSTANTS)
FILES = sorted(Path(assumptions.__file__).parent.rglob("*.py"))


def test_every_figure_is_listed_under_its_name():
    own = {n: v for n, v in vars(assumptions).items() if isinstance(v, Constant)}
    listed = {**CONSTANTS, **PLANNING_CONSTANTS, **COLLECTIVE_CONSTANTS}
    assert own == listed
    assert len(listed) == sum(map(len, LISTS))
    assert all(name == constant.name for name, constant in listed.items())


def test_every_figure_has_a_unit_and_a_source():
    for constant in CONSTANTS.values():
        assert constant.unit, constant.name
        assert constant.is_assumption or "[" in constant.source or constant.source, (
            constant.name
        )


def test_what_was_fitted_names_its_measurement():
    fitted = {c.name: c.fitted_to for c in CONSTANTS.values() if c.fitted_to}
    assert set(fitted) == {
        "DMA_ELEMENT",
        "HBM_INTERLEAVE",
        "HBM_LATENCY",
        "PROGRAM_SECONDS",
        "RECIPROCAL_PASSES_V2",
        "THROTTLE_SINKING",
        "VISIBLE_STARTS",
    }
    assert all("trn" in measurement for measurement in fitted.values())


def test_every_figure_is_used_by_a_rule():
    here = Path(assumptions.__file__)
    rules = "".join(
        path.read_text() for path in here.parent.rglob("*.py") if path != here
    )
    assert [name for name in CONSTANTS if f".{name}" not in rules] == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_public_number_is_a_constant_with_a_source(path):
    """What a module calls by a public name and is a bare number would be unlisted."""
    bare = re.findall(r"^([A-Z][A-Z_0-9]*) = [\d.]", path.read_text(), re.MULTILINE)
    assert set(bare) <= NO_FIGURES


def test_every_assumption_of_the_planning_is_used():
    here = Path(assumptions.__file__)
    rules = "".join(path.read_text() for path in FILES if path != here)
    assert [n for n in PLANNING_CONSTANTS if f"{n}.value" not in rules] == []
