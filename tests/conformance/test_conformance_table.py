"""Op by op: the emulator under the policy "fp32" against JAX and the interpreter.

The rows are in `table/`: each op x dtype x kind of attribute, on small shapes. Rows of
one file are evaluated together, in one program per `GROUP` of them; singly only to say
which of them fails to be captured or lowered.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import neuronjax as nj
from neuronjax.lowering.registry import RULES
from tests.conformance.table import FAMILIES, KNOWN, NOT_IN_TABLE, saved
from tests.conformance.table.case import Case
from tests.conformance.table.comparison import complaints
from tests.conformance.table.evaluation import emulated, interpreted, lowered, native

GROUP = 48


def groups(slow: bool) -> Iterator[tuple[str, Sequence[Case]]]:
    """(name, rows) of one chip each."""
    for family, cases in FAMILIES.items():
        chosen = [c for c in cases if c.slow == slow and c.name not in KNOWN]
        for target, rows in itertools.groupby(chosen, lambda case: case.target):
            rows = list(rows)
            for start in range(0, len(rows), GROUP):
                yield f"{family}-{target}-{start}", rows[start : start + GROUP]


def parameters(slow: bool) -> list:
    return [pytest.param(rows, id=name) for name, rows in groups(slow)]


@pytest.mark.slow_except("contraction-trn3-0")
@pytest.mark.parametrize("cases", parameters(slow=False))
def test_rows(cases):
    assert_conforming(cases)


@pytest.mark.slow
@pytest.mark.parametrize("cases", parameters(slow=True))
def test_slow_rows(cases):
    assert_conforming(cases)


def assert_conforming(cases: Sequence[Case]) -> None:
    try:
        got = emulated(cases)
    except Exception as error:  # of any kind: the rows are to be named
        raise AssertionError("\n".join(["", *refusals(cases)])) from error
    wrong = [*mismatches(cases, got, native(cases), "JAX")]
    interpretable = [i for i, case in enumerate(cases) if case.interpreter]
    if interpretable:
        some = [cases[i] for i in interpretable]
        wrong += mismatches(
            some, [got[i] for i in interpretable], interpreted(some), "the interpreter"
        )
    assert not wrong, "\n".join(["", *wrong])


def mismatches(cases, got, want, source: str) -> Iterator[str]:
    for case, a, b in zip(cases, got, want, strict=True):
        yield from complaints(case, a, b, source)


def refusals(cases: Sequence[Case]) -> Iterator[str]:
    """Which rows are refused, or break the emulator, when they are alone, and why."""
    for case in cases:
        try:
            emulated([case])
        except Exception as error:  # of any kind: the row is to be named
            yield f"{case.name}: {type(error).__name__}: {str(error).splitlines()[0]}"


@pytest.mark.parametrize("name", KNOWN)
def test_known_failures_still_fail(name):
    """A row that passes is taken off the list."""
    (case,) = (c for cases in FAMILIES.values() for c in cases if c.name == name)
    with pytest.raises((AssertionError, nj.NeuronJaxError), match=KNOWN[name]):
        assert_conforming([case])


@pytest.fixture(scope="module")
def saved_program():
    return nj.load(saved.module().encode(), policy="fp32")


@pytest.mark.slow
def test_saved_ops(saved_program):
    arguments = [array for array, _ in saved.ARGUMENTS.values()]
    results = saved_program.compile()(*arguments)
    for (name, row), got in zip(saved.SAVED.items(), results, strict=True):
        np.testing.assert_array_equal(np.asarray(got), row.expected, err_msg=name)


def test_names_are_unique():
    names = Counter(c.name for cases in FAMILIES.values() for c in cases)
    assert max(names.values()) == 1, names.most_common(3)


@pytest.mark.slow
def test_every_rule_has_a_row(saved_program):
    programs = [lowered(rows) for slow in (False, True) for _, rows in groups(slow)]
    seen = {
        op.name for made in (saved_program, *programs) for op in made.program.walk()
    }
    without = set(RULES) - seen
    assert without <= set(NOT_IN_TABLE), sorted(without - set(NOT_IN_TABLE))
    assert set(NOT_IN_TABLE) <= set(RULES)
