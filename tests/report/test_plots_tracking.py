"""The picture of errors over commits."""

from __future__ import annotations

from neuronjax.report.plots_tracking import draw_tracking


def record(number, policy, rel_l2, faults=0):
    about = {"source": "model.py:step", "target": "trn2", "policy": policy}
    return about | {
        "commit": f"{number:07x}",
        "rel_l2": rel_l2,
        "max": 5 * rel_l2,
        "faults": faults,
        "predicted_seconds": 2e-5,
    }


def test_a_line_for_each_policy_and_a_cross_for_a_fault():
    records = [record(n, p, 1e-3, n == 3) for n in range(60) for p in ("bf16", "fp8")]
    figure = draw_tracking(records)
    above, below = figure.axes
    labels = [line.get_label() for line in above.lines]
    assert labels[0] == "bf16: relative L2"
    assert sum(line.get_marker() == "x" for line in above.lines) == 2
    assert len(below.get_xticklabels()) <= 40
    assert below.get_xticklabels()[0].get_text() == "0000000"
    assert "model.py:step on trn2" in above.get_title(loc="left")
