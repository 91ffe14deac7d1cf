"""The claims on what is exact: complete, and true to the code."""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from docs.made.exactness import CLAIMS
from docs.made.silicon import EVIDENCE, SILENT
from neuronjax.hardware import CHIPS
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.program import TensorType
from neuronjax.ir.vector_sums import sum_label
from neuronjax.policy import Policy
from tests.conformance.instructions import instruction_classes

ROOT = Path(__file__).parent.parent.parent
#: Its functions (power, atan2, ...) are in the claim on elementary functions.
BY_OP = {"TensorTensor": "exact"}


def test_every_instruction_has_one_claim():
    claimed = collections.Counter(n for c in CLAIMS for n in c.instructions)
    assert claimed == dict.fromkeys(instruction_classes(), 1)


def test_labels_are_those_of_the_instructions():
    classes = instruction_classes()
    for claim in CLAIMS:
        for name in claim.instructions:
            label = classes[name].label
            if name in BY_OP:
                assert claim.label == BY_OP[name]
            elif isinstance(label, property):  # "host" where the policy asked for it
                assert claim.label == "modelled", name
            else:
                assert label == claim.label, name
    assert Instruction.label == "exact"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.subject)
def test_the_evidence_exists(claim):
    assert claim.tests
    for path in claim.tests:
        assert (ROOT / path).is_file(), path
    fields = {field.name for field in dataclasses.fields(Policy)}
    assert {name for name in claim.switch.split(", ") if name} <= fields


@pytest.mark.parametrize("row", EVIDENCE, ids=lambda row: row.device[:30])
def test_a_measurement_is_of_a_claim_and_is_shown(row):
    assert row.subject in {claim.subject for claim in CLAIMS}
    assert (ROOT / row.shown_by).is_file()
    assert row.chip in CHIPS
    assert row.device
    assert row.here
    assert row.source
    # What a chip contradicts is never left without saying what else may hold.
    assert row.verdict == "confirmed" or row.unexplained


def test_what_is_checked_on_silicon_has_a_measurement():
    confirmed = {row.subject for row in EVIDENCE if row.verdict == "confirmed"}
    labelled = {c.subject for c in CLAIMS if c.label == "checked on silicon"}
    assert labelled
    assert labelled <= confirmed
    assert len({what for what, _ in SILENT}) == len(SILENT)


def test_only_short_fp32_sums_carry_the_label():
    def label(op, length, dtype):
        operand = TensorType((4, length), np.dtype(dtype))
        return sum_label(op, operand, (1,))

    assert label("add", 128, "float32") == "checked on silicon"
    for other in (("add", 129, "float32"), ("multiply", 128, "float32")):
        assert label(*other) == "modelled"
    assert label("add", 128, "float16") == "modelled"
    text = nj.jit(lambda x: x.sum(1)).lower(jnp.ones((3, 100))).as_text("instructions")
    assert "# checked on silicon test_exactness.py" in text
