"""The schema of verdicts says what a verdict has."""

from __future__ import annotations

import json

from docs.made.verdict_schema import schema
from neuronjax.diagnostics.judging.verdict import (
    KernelVerdict,
    Problem,
    SeedVerdict,
    from_json,
)


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
