"""The errors stored in the package are those of the model and of the results."""

import json

import pytest

from benchmarks import evidence, results_file
from benchmarks.validation.report import predict
from benchmarks.validation.rows import ROWS
from neuronjax.timing import evidence as neuronjax_evidence

STALE = "run python -m benchmarks.evidence"
QUICK = ("attention 9216x9216 d64 bfloat16 causal", "mlp decode LNC1 B1 S1 H7168")


def written():
    return json.loads(evidence.FILE.read_text())["rows"]


def test_kernels_are_those_of_the_results():
    entries = results_file.read(evidence.KERNELS)["entries"]
    expected = [evidence.of_kernel(entry) for entry in entries]
    assert [row for row in written() if row["kind"] == "kernel"] == expected, STALE


def test_every_best_time_of_a_program_is_there():
    names = {row["name"] for row in written() if row["kind"] == "program"}
    assert names == {r.name.removesuffix(" -") for r in ROWS if evidence.counts(r)}


def test_four_of_five_programs_that_are_held_out_lie_in_the_interval_of_the_others():
    held = {row.name.removesuffix(" -") for row in ROWS if row.is_held_out}
    rows = [row for row in neuronjax_evidence.measured_times() if row.kind == "program"]
    known = [row for row in rows if row.name not in held]
    inside = []
    for row in rows:
        if row.name in held and row.chip != "trn3":  # of trn3 all are held out
            found = neuronjax_evidence.among(row, known)
            low, high = found.low_seconds, found.high_seconds
            inside.append(low <= row.measured_seconds <= high)
    assert len(inside) == 31
    assert sum(inside) / len(inside) == pytest.approx(0.8, abs=0.08)


@pytest.mark.parametrize(
    "start",
    [*QUICK, pytest.param("", marks=pytest.mark.slow)],
    ids=lambda s: s or "all",
)
def test_programs_are_predicted_as_written(start):
    known = {row["name"]: row for row in written()}
    for row in ROWS:
        if evidence.counts(row) and row.name.startswith(start):
            assert (
                evidence.of_program(predict(row)) == known[row.name.removesuffix(" -")]
            ), STALE
