"""Results as flat dicts of scalars."""

from __future__ import annotations

import json

from neuronjax.report.summaries import Summarised


class Found(Summarised):
    def as_dict(self):
        return {
            "name": "step",
            "ok": True,
            "nothing": None,
            "metrics": {"mfu": 0.5, "deep": 2},
            "by_op": {"add": {"seconds": 1.0}, "dot": {"seconds": 2.0}},
            "outputs": [{"path": "loss", "rms": 0.25}, {"path": "w", "rms": 1.0}],
            "notes": ["a", "b"],
        }


def test_figures_are_flat_and_tables_are_counted():
    assert Found().summary() == {
        "name": "step",
        "ok": True,
        "metrics/mfu": 0.5,
        "metrics/deep": 2,
        "by_op": 2,
        "outputs/loss/rms": 0.25,
        "outputs/w/rms": 1.0,
        "notes": 2,
    }
    assert json.loads(Found().to_json()) == Found().to_json_dict()
    assert Summarised().summary() == {}
