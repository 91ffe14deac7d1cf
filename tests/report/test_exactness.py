"""The page on what is exact: complete, true to the code, and up to date."""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path

import pytest

from neuronjax.ir.instruction import Instruction
from neuronjax.policy import Policy
from neuronjax.report.exactness import CLAIMS, as_markdown, instruction_classes

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


def test_the_page_is_up_to_date():
    page = (ROOT / "docs" / "exactness.md").read_text()
    assert page == as_markdown() + "\n", "run: neuronjax exactness --markdown"
