"""Every verb on every kind of program: an answer that is right, or a named refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.composition.programs import KINDS
from tests.composition.refusals import REFUSALS, refusal_of
from tests.composition.verbs import VERBS

CELLS = [(verb, kind) for verb in VERBS for kind in KINDS]
#: `make test` runs all verbs on functions of arrays, these on a mesh, and on all kinds
#: `check`, which computes nothing.
ON_A_MESH = ("jit", "compare", "compare(against=)", "tolerance", "profile", "estimate")
MOST_REFUSED = 0.05
ERRORS = Path(__file__).parents[2] / "docs" / "errors.md"


def _parameters():
    for verb, kind in CELLS:
        on_a_mesh = kind == "psum" and verb in ON_A_MESH
        quick = kind == "arrays" or verb == "check" or on_a_mesh
        marks = [] if quick else [pytest.mark.matrix]
        yield pytest.param(verb, kind, marks=marks, id=f"{verb}-{kind}")


@pytest.mark.filterwarnings("ignore::UserWarning:jax")
@pytest.mark.parametrize(("verb", "kind"), _parameters())
def test_verb_on_program(verb, kind, tmp_path):
    refusal = refusal_of(verb, kind)
    if refusal is None:
        VERBS[verb](kind, tmp_path)
        return
    with pytest.raises(refusal.error, match=refusal.words):
        VERBS[verb](kind, tmp_path)


def test_few_cells_are_refused():
    refused = [cell for cell in CELLS if refusal_of(*cell)]
    assert len(refused) <= MOST_REFUSED * len(CELLS)


def test_every_refusal_is_of_cells_and_stands_in_the_docs_with_its_reason():
    page = ERRORS.read_text()
    for refusal in REFUSALS:
        assert set(refusal.cells) <= set(CELLS)
        assert f"| {refusal.row}" in page, f"docs/errors.md has no row {refusal.row}"
