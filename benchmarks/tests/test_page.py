"""Results files, and the page that is made from them; nothing is measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import results_file
from benchmarks.page import __main__ as command, plots, summary, text
from benchmarks.tests import sample_results


@pytest.fixture
def folder(tmp_path) -> Path:
    for name, found in sample_results.documents().items():
        results_file.write(found, tmp_path / "results" / f"{name}.json")
    return tmp_path


def test_kernels_have_an_order_and_their_counters(folder):
    found = sample_results.documents()["validate_kernels"]
    page = command.SECTIONS["validate_kernels"][1](found)
    assert "| trn2 | silu | 6 | 10 % | 10 % | 100% | 0.90 | 1.7% |" in page
    assert "| silu_v0 | trn2 | 600 µs | 510 µs | -10% |  |  | 0.19 / 0.20 |  |" in page


def test_an_op_that_is_left_out_has_both_errors(folder):
    found = sample_results.documents()["leave_one_out"]
    page = command.SECTIONS["leave_one_out"][1](found)
    row = "| silu | 10 | 3.0 % |  | 5.0 % |  | streaming_bytes_per_second 2.4e+10 |"
    assert row in page


def test_numbers_stand_beside_those_of_the_device(folder):
    documents = sample_results.documents()
    page = command.SECTIONS["validate_numerics"][1](documents["validate_numerics"])
    assert "With the default functions, 1 of 2 kernels are within 10 %:" in page
    row = "| 1.800e-07 | 2.090e-07 | 1.161 | **no** | 1.44e-07 | 1.08e-07 | 1.52e-07 |"
    assert f"| bmm_v1 | trn2 | FP32 matmul, K = 64 {row}" in page
    assert "| 0.966 | yes | 1.00e-08 |  |  |" in page
    assert "Not run: gqa_full_v3 (not asked for)." in page
    page = command.SECTIONS["fp32_models"][1](documents["fp32_models"])
    row = "| fp32_4pass | 1.111 / 1.167 | excluded by K = 64 |"
    assert row in page


def test_judged_kernels_have_a_row_for_every_op(folder):
    found = sample_results.documents()["judge_kernels"]
    page = command.SECTIONS["judge_kernels"][1](found)
    words = " ".join(page.split())
    assert "accepted 1 of 2 kernels. The median time was 6.0 s and the longest" in words
    assert "longest 9 s; a process used at most 1.0 GiB." in words
    assert "| silu | 2 | 1 | 6.0 | 9.0 | 1.0 |" in page
    assert "| workspaces/silu/runs/silu_v1.py | limit: no kernel |" in page
    assert page.endswith("We did not judge 1 other kernel.")


def test_faults_are_counted_by_half_and_by_kind_beside_the_targets(folder):
    found = sample_results.documents()["faults"]
    page = command.SECTIONS["faults"][1](found)
    row = "| 01234567 | 10 | 80.0 % | 100.0 % | 0.0 % | 80.0 % | 0.0 % |"
    assert f"| seen | `float64` {row}" in page
    assert (
        "| at least 90.0 % | at least 97.0 % |  | at least 85.0 % | at most 2" in page
    )
    assert "| integer |  |  |  |  |  | 10 | 9 | 10 | 8 | 1 |" in page
    assert "| all |" not in page


# ---- Results files.


def test_a_document_is_read_as_it_was_written(tmp_path):
    found = sample_results.documents()["native"]
    results_file.write(found, tmp_path / "deep" / "native.json")
    assert results_file.read(tmp_path / "deep" / "native.json") == found


@pytest.mark.parametrize("key", [*results_file.KEYS, "versions", "machine"])
def test_a_document_has_every_key(key):
    found = sample_results.documents()["native"]
    del found[key]
    with pytest.raises(results_file.BadResults, match=key):
        results_file.check(found)


def test_other_versions_and_other_files_are_refused(tmp_path):
    found = sample_results.documents()["native"]
    with pytest.raises(results_file.BadResults, match="version 2"):
        results_file.check({**found, "version": 2})
    path = tmp_path / "native.json"
    path.write_text("{")
    with pytest.raises(results_file.BadResults, match=r"native\.json"):
        results_file.read(path)


def test_committed_results_are_of_this_version():
    for name in command.SECTIONS:
        path = results_file.RESULTS / f"{name}.json"
        if path.exists():
            assert results_file.read(path)["name"] == name


def test_the_command_writes_a_file_and_fails_when_told(tmp_path, capsys):
    path = tmp_path / "native.json"
    body = {"entries": [{"quick": True}], "failed": True}
    code = results_file.command(
        "native",
        lambda quick: body,
        lambda found: "shown",
        ["--quick", "--output", str(path)],
    )
    assert code == 1
    assert json.loads(path.read_text())["quick"] is True
    assert "shown" in capsys.readouterr().out


# ---- What wins and what loses.


def test_verdicts_are_by_time_and_begin_with_the_worst():
    found = summary.verdicts(sample_results.documents()["peers"]["entries"])
    outcomes = {(v.kind, v.peer): v.outcome for v in found}
    assert outcomes["casts to nearest", "jnp.astype"] == "slower"
    assert outcomes["casts to nearest", "torch"] == "faster"
    assert outcomes["MX quantize and dequantize", "qwix"] == "even"
    assert found[0].times == "2.00 × slower"
    numerics = {v.peer: v.numerics for v in found}
    assert numerics["torch"] == "3 codes differ, overflow, Inf or NaN differ"
    assert numerics["qwix"] == "equal to our `rceil`"
    assert numerics["NumPy"].endswith("50% of the sums differ")


# ---- The page.


def test_the_page_is_made_of_the_files_alone(folder):
    arguments = ["--results", str(folder / "results"), "--docs", str(folder / "docs")]
    assert command.main(arguments) == 0
    page = (folder / "docs" / "benchmarks.md").read_text()
    titles = [title for title, _ in command.SECTIONS.values()]
    assert all(f"## {title}" in page for title in titles)
    assert page.index("## What wins") < page.index("## Machine")
    assert page.count("<details") == page.count("</details>") > 5
    for said in (
        "neuronjax loses",
        "1 is missed: `gpt_step/bf16`",
        "Not installed, and skipped: qwix",
        "skipped: absent",
        "overflow to 448 (ours nan)",
        "it would take 900 s",
        "The time limit cut these short: tokens.",
        "1 equal, 1 DIFFERS",
        "2026-01-02, **a quick run of some of the rows**.",
        "| 1.50 (1.40 to 1.70) |",
        "emulated / native, median of pairs",
        "<summary>All 2 rows</summary>",
        "2026-01-02",
    ):
        assert said in page, said
    images = {path.name for path in (folder / "docs" / "images").iterdir()}
    assert images == {f"bench_{name}.png" for name in command.PLOTS}
    assert all(f"images/{name}" in page for name in images)
    assert command.page(command.load(folder / "results")) == page


def test_a_section_without_results_says_so(folder):
    (folder / "results" / "peers.json").unlink()
    page = command.page(command.load(folder / "results"))
    assert "This was not measured; `python -m benchmarks.peers`" in page
    assert "neuronjax loses" not in page


def test_no_results_at_all_are_an_error(tmp_path, capsys):
    assert command.main(["--results", str(tmp_path), "--docs", str(tmp_path)]) == 1
    assert "no results" in capsys.readouterr().err


def test_rows_are_grouped_under_words_that_a_stranger_reads():
    (axes,) = plots.native(sample_results.documents()["native"]["entries"]).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["a GPT's training step", "bf16"]


def test_a_dot_on_the_losing_side_is_not_green():
    colours = {summary.outcome(ratio) for ratio in (0.5, 1.05, 2.0)}
    assert colours == {"slower", "even", "faster"}
    found = summary.verdicts(sample_results.documents()["peers"]["entries"])
    (axes,) = plots.peers(found).axes
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert dots
    for dot in dots:
        (ratio,) = np.asarray(dot.get_xdata())
        assert (dot.get_color() == plots.WIN) == (ratio > summary.MARGIN)


def test_rows_of_the_time_model_fall_into_families():
    assert plots.family("collectives T12") == "collectives"
    assert plots.family("mlp decode") == "programs"


@pytest.mark.parametrize(
    ("value", "said"),
    [(1.5, "1.50 s"), (0.0123, "12.3 ms"), (4.2e-5, "42.0 µs"), (3e-8, "30.0 ns")],
)
def test_seconds_have_three_digits_and_a_unit(value, said):
    assert text.seconds(value) == said


def test_tables_survive_bars():
    assert text.table(("a",), [("x|y",)]).splitlines()[-1] == "| x\\|y |"
