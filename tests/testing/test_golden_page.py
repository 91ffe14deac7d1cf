"""What goldens said, on a page for reviewers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from neuronjax.testing import GoldenMismatch, GoldenReport
from neuronjax.testing.bits import Difference, LeafDifference
from neuronjax.testing.golden_page import page, row
from neuronjax.testing.source_lines import EditedLines

SIZE = Difference(
    equal=False, differing=3, max_abs=0.5, max_ulp=12.0, relative_l2=0.0625
)
WORST = LeafDifference(path="params/w", differing=3, compared=8, size=SIZE)
EDITED = SimpleNamespace(
    lines=EditedLines({"model.py:7": "y = x"}, {"model.py:8": "y = 2 * x"}),
    because="the source was edited, model.py:8",
)


def rows():
    failed = GoldenMismatch("program", "...", [WORST], change=EDITED)  # type: ignore[arg-type]
    report = {"path": Path("golden/x")}
    written = GoldenReport(name="new", written=True, leaves=(WORST,), **report)
    return [
        row("step.bf16", failed, "golden step.bf16: <other> bits"),
        row("new", written, "golden new: written"),
        row("quiet", GoldenReport(name="quiet", **report), "stored bits"),
    ]


def test_markdown_has_the_worst_result_and_the_edited_line():
    text = page(rows(), is_html=False)
    assert text.startswith("## Goldens: 1 failed: program, 1 written, 1 unchanged\n")
    cells = "| step.bf16 | failed: program | params/w | 12 | 0.0625 | 3 of 8 | model.py"
    assert f"{cells}:8 |" in text
    assert "```text\ngolden step.bf16: <other> bits\n```" in text
    assert "quiet" not in text
    assert "|" not in page(rows()[2:], is_html=False)


def test_html_is_the_same_and_escapes():
    text = page(rows(), is_html=True)
    assert "<td>params/w</td>" in text
    assert "<summary>step.bf16</summary>" in text
    assert "&lt;other&gt; bits" in text


def test_rows_are_plain_data():
    assert json.loads(json.dumps(rows())) == rows()
