"""The page on what is exact, as the package reads it."""

from __future__ import annotations

from docs.made.exactness import CLAIMS, MEANINGS
from docs.made.silicon import EVIDENCE
from neuronjax.report import exactness


def test_every_claim_is_read_from_the_page():
    assert exactness.meanings() == MEANINGS
    for label in MEANINGS:
        found = [
            (row["what"], row["rule"], row["switch"]) for row in exactness.claims(label)
        ]
        made = [(c.subject, c.rule, c.switch) for c in CLAIMS if c.label == label]
        assert found == made


def test_every_measurement_is_read_from_the_page():
    rows = exactness.sections()["Measurements of chips"]
    assert [(row["claim"], row["result"], row["open"]) for row in rows] == [
        (e.subject, e.verdict, e.unexplained) for e in EVIDENCE
    ]
