"""The schema of verdicts in the documentation is the one that verdicts have."""

from __future__ import annotations

import json
from pathlib import Path

from neuronjax.diagnostics.judging.schema import schema
from neuronjax.diagnostics.judging.verdict import (
    KernelVerdict,
    Problem,
    SeedVerdict,
    from_json,
)

DOCUMENTED = Path(__file__).parents[3] / "docs" / "verdict.schema.json"


def test_the_documented_schema_is_current() -> None:
    """Written by `python -m neuronjax.diagnostics.judging.schema`."""
    assert json.loads(DOCUMENTED.read_text()) == schema()


def test_a_verdict_has_the_properties_of_the_schema() -> None:
    seed = SeedVerdict(
        seed=0,
        correct=False,
        relative_l2=float("inf"),
        allowed=1e-6,
        worst=None,
        why="NaN",
    )
    problem = Problem(rule="limit", location="", message="", remedy="")
    verdict = KernelVerdict(
        candidate="c.py",
        kernel="k",
        target="trn2",
        accepted=False,
        correct=False,
        tolerance="given",
        seeds=(seed,),
        limits=(problem,),
    )
    data = json.loads(verdict.to_json())
    described = schema()
    assert list(data) == described["required"] == list(described["properties"])
    seeds = described["properties"]["seeds"]["items"]["properties"]
    assert list(data["seeds"][0]) == list(seeds)
    assert data["seeds"][0]["relative_l2"] == "inf"
    assert from_json(verdict.to_json()) == verdict
