"""The benchmark harness: statistics, alternation, registration, reports, exit codes.

No row of the real benchmark is run; the clock appears only where its reading is free.
"""

from __future__ import annotations

import io
import json
import os
import subprocess

import pytest
from rich.console import Console

from benchmarks import harness, run
from benchmarks.harness import Effort, Record, Result, Row, Samples

ABOUT = {
    "started": "2026-01-01T00:00:00+00:00",
    "versions": {"jax": "0.0"},
    "machine": {"processor": "P", "threads": 2, "load_at_start": 0.5},
}


def result(*values, **fields):
    return Result(value=Samples(values), unit="x", **fields)


def record(name="group/variant", target=None, **fields):
    given = Row(name, lambda effort: result(1.0), target)
    return Record(row=given, **{"status": "measured", **fields})


# ---- Statistics.


@pytest.mark.parametrize(
    ("values", "median", "quartiles"),
    [
        ((3.0,), 3.0, (3.0, 3.0)),
        ((1.0, 2.0), 1.5, (1.25, 1.75)),
        ((5.0, 1.0, 3.0, 2.0, 4.0), 3.0, (2.0, 4.0)),
    ],
)
def test_median_and_quartiles(values, median, quartiles):
    samples = Samples(values)
    assert samples.median == median
    assert samples.quartiles == quartiles
    assert samples.iqr == quartiles[1] - quartiles[0]


def test_no_samples_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        Samples(())


def test_the_ratio_is_taken_pair_by_pair():
    """Check that a machine that becomes ten times slower does not change the ratio."""
    made = harness.ratio(Samples((1.0, 2.0, 10.0)), Samples((3.0, 6.0, 30.0)))
    assert made.value.values == (3.0, 3.0, 3.0)
    assert made.value.iqr == 0


def test_scaled_samples_keep_their_order():
    assert Samples((2.0, 1.0)).scaled(1e6).values == (2e6, 1e6)


# ---- Measuring.


def test_thunks_alternate_after_the_warm_up():
    calls = []
    thunks = [lambda: calls.append("a"), lambda: calls.append("b")]
    times = harness.interleave(
        thunks, Effort(repetitions=3, seconds=60.0), before=lambda: calls.append("-")
    )
    assert "".join(calls) == "ab" + "-a-b" * 3
    assert [len(samples.values) for samples in times] == [3, 3]


@pytest.mark.parametrize(("minimum", "runs"), [(1, 1), (3, 3)])
def test_time_that_is_over_ends_the_repetitions(minimum, runs):
    effort = Effort(repetitions=100, seconds=0.0, minimum=minimum)
    (times,) = harness.interleave([lambda: None], effort)
    assert len(times.values) == runs


def test_the_clock_stops_when_the_array_is_there():
    class Late:
        waited = 0

        def block_until_ready(self):
            self.waited += 1

    late = Late()
    assert harness.seconds_of(lambda: late) >= 0
    assert late.waited == 1


def verdict_folder():
    return os.environ["NEURONJAX_CACHE_DIR"]


def test_a_fresh_process_has_its_own_environment(monkeypatch):
    monkeypatch.delenv("NEURONJAX_CACHE_DIR", raising=False)
    environment = {"NEURONJAX_CACHE_DIR": "/somewhere"}
    assert harness.in_fresh_process(verdict_folder, environment) == "/somewhere"
    assert "NEURONJAX_CACHE_DIR" not in os.environ


# ---- Rows.


def test_rows_are_registered_by_name():
    rows = {}

    @harness.row("a/b", target=2, rows=rows)
    def measure(effort):
        return result(1.0)

    assert rows == {"a/b": Row("a/b", measure, 2)}


def test_two_rows_of_one_name_are_refused():
    rows = {}
    harness.row("a", rows=rows)(lambda effort: result(1.0))
    with pytest.raises(ValueError, match="named a"):
        harness.row("a", rows=rows)(lambda effort: result(1.0))


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ((), ["gpt/bf16", "gpt/bf16_host", "sum", "gpt/fp8"]),
        (("gpt/bf16",), ["gpt/bf16"]),
        (("bf16",), ["gpt/bf16", "gpt/bf16_host"]),
        (("g*8", "su"), ["sum", "gpt/fp8"]),
        (("nothing",), []),
    ],
)
def test_selection_puts_targets_first(patterns, names):
    targets = {"gpt/bf16": 1.6, "gpt/fp8": None, "gpt/bf16_host": 1.2, "sum": 3}
    rows = {n: Row(n, lambda effort: result(1.0), t) for n, t in targets.items()}
    assert [r.name for r in harness.select(rows, patterns)] == names


@pytest.mark.parametrize(
    ("value", "target", "reached"),
    [(1.5, 1.6, True), (1.6, 1.6, True), (1.7, 1.6, False), (1.7, None, None)],
)
def test_a_target_is_reached_from_below(value, target, reached):
    assert record(target=target, result=result(value)).reached is reached


def test_a_row_that_crashed_has_reached_nothing():
    assert record(target=1.0, status="crashed", error="...").reached is None


def test_every_row_of_the_benchmark_is_found():
    run.discover()
    casts = {name for name in harness.ROWS if name.startswith("cast")}
    assert len(casts) == 13
    targets = {name: r.target for name, r in harness.ROWS.items() if r.target}
    assert targets == {
        "compare/gpt_10m": 5.0,
        "compare/unet": 20.0,
        "gpt_step/bf16": 1.6,
        "gpt_step/bf16_host": 1.2,
        "gpt_step/bf16_tables": 1.0,
        "gpt_step/fp8": 1.7,
        "gpt_step/mxfp8": 2.2,
        "gpt_step/fp32": 3,
        "gpt_compile/bf16_warm": 2.5,
        "gpt_compile/fp8_warm": 4,
        "gpt_compile/mxfp8_warm": 5,
        "gpt_compile/bf16_cold": 4,
        "gpt_compile/second": 3,
        "gpt_compile/layers_12": 2,
        "gpt_lowering/neuronjax": 40,
        "quickstart/seconds": 90,
        "quickstart/fp8": 1.7,
        "quickstart/mxfp8": 2.2,
        "quickstart/second_bf16": 3,
        "quickstart/second_fp8": 3,
        "quickstart/second_mxfp8": 3,
        "large/step_100M": 1.5,
        "large/memory_100M": 1.5,
        "sum/last_axis": 3,
        "sum/first_axis": 3,
        "convolutions/compile": 4,
        "matmul/bf16": 1.3,
        "matmul/fp8": 2,
        "matmul/mxfp8": 2.2,
        "matmul/mxfp4": 2.2,
        "matmul/fp32": 4.5,
        "mx/quantize_mxfp8": 3,
        "mx/quantize_mxfp4": 3,
        "matmul/sparse": 2,
        **{f"function/{name}": 4 for name in ("exponential", "tanh", "erf")},
        **dict.fromkeys(casts, 1.5),
        "cast/float16": 1.2,
        "cast/e2m1_ms": 20,
        "dispatch/one_leaf": 100,
        "dispatch/fifty_leaves": 100,
        "scan/1000_over_10": 1.2,
        "program/10000_ops": 400,
        "chips/64_over_sequential": 1.3,
        "chips/compile_64_over_4": 1.3,
        "chips/two_real_over_one": 0.75,
        "collect_gpt/default": 1.3,
        "collect_gpt/every8": 1.3,
        "timing/llama-3-8b-shaped": 10,
        "judge/limit": 2.0,
        "judge/limit-warm": 2.0,
        "judge/matmul-fp32": 10.0,
        "judge/silu-29M": 10.0,
        "judge/small-warm": 1.0,
        "timing/kernel-200k": 10,
        "timing/kernel-schedule": 10,
        "nki/matmul_1024_tiled": 4,
        "nki/matmul_1024_blocked": 4,
        "nki/compile": 10,
        "nki/matmul_4096_8192_8192": 300,
        "nki/flash_attention_4096": 30,
    }


# ---- Reports.


def text_of(records):
    file = io.StringIO()
    Console(width=80, file=file).print(harness.table(records))
    return file.getvalue()


def test_the_table_shows_value_target_and_whether_it_was_reached():
    times = {"native": Samples((0.5,)), "emulated": Samples((1.0,))}
    lines = text_of(
        [
            record("one", 1.5, result=result(2.0, **times)),
            record("two", 3, result=result(1.0, 2.0, 3.0)),
            record("three", result=result(1.0)),
            record("four", 4, status="skipped"),
        ]
    ).splitlines()
    assert [line.split() for line in lines] == [
        list(harness.COLUMNS),
        ["one", "500", "ms", "1", "s", "2", "x", "1.5", "no", "1"],
        ["two", "2", "x", "1", "3", "yes", "3"],
        ["three", "1", "x", "1"],
        ["four", "skipped", "4"],
    ]


def test_the_table_keeps_to_80_columns():
    run.discover()
    worst = result(
        *(123.456, 234.567) * 10, native=Samples((1.23e-5,)), emulated=Samples((0.123,))
    )
    lines = text_of([record(n, 1.25, result=worst) for n in harness.ROWS]).splitlines()
    assert len(lines) == 1 + len(harness.ROWS)
    assert max(map(len, lines)) <= 80
    assert all(name in line for name, line in zip(harness.ROWS, lines[1:], strict=True))
    assert "…" not in "".join(lines)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12.34, "12.3 s"), (1.0, "1 s"), (0.0123, "12.3 ms"), (4.5e-6, "4.5 us")],
)
def test_durations(seconds, text):
    assert harness.duration(seconds) == text


def test_footnotes_hold_details_versions_and_machine():
    made = record("a", result=result(1.0, details={"trace_seconds": 1.234}))
    details, versions, machine, _ = harness.footnotes([made], ABOUT)
    assert details == "a: trace_seconds 1.23"
    assert versions == "jax 0.0"
    assert machine == "P, 2 threads, load 0.5 at the start"


def test_the_document_is_json_and_complete():
    made = record("a", 2, result=result(1.0, 3.0, 2.0, native=Samples((1.0,))))
    crashed = record("b", status="crashed", error="Traceback")
    document = harness.document([made, crashed], Effort(3, 1.0), ABOUT)
    first, second = json.loads(json.dumps(document))["rows"]
    assert (first["value"], first["target"], first["reached"]) == (2.0, 2, True)
    assert first["samples"]["values"] == [1.0, 3.0, 2.0]
    assert first["native_seconds"]["median"] == 1.0
    assert first["emulated_seconds"] is None
    assert (second["status"], second["error"]) == ("crashed", "Traceback")
    assert document["effort"]["repetitions"] == 3


def test_circumstances_name_versions_and_machine():
    about = harness.circumstances()
    assert set(about["versions"]) == {"python", "jax", "jaxlib", "neuronjax", "commit"}
    assert {"processor", "cores", "threads"} <= set(about["machine"])
    assert about["machine"]["threads"] >= 1
    json.dumps(about)


def test_outside_a_checkout_the_commit_is_unknown(tmp_path):
    assert harness.commit(tmp_path) == "unknown"


def test_a_commit_is_marked_as_changed_unless_only_results_are(tmp_path):
    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", tmp_path, *who, *arguments], check=True)

    results, code = tmp_path / "benchmarks" / "results" / "a.json", tmp_path / "code.py"
    results.parent.mkdir(parents=True)
    results.write_text("1")
    code.write_text("1")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    results.write_text("2")
    assert len(harness.commit(results.parent.parent)) == 12
    code.write_text("2")
    assert harness.commit(results.parent.parent).endswith("+")


# ---- The command.


@pytest.fixture
def two_rows(monkeypatch):
    """Return a registry of one row that works and one that raises."""

    def crash(effort):
        raise ArithmeticError("on purpose")

    rows = {
        "good": Row("good", lambda effort: result(9.0), 1),
        "bad": Row("bad", crash),
    }
    monkeypatch.setattr(harness, "ROWS", rows)
    monkeypatch.setattr(run, "discover", lambda: None)


@pytest.mark.usefixtures("two_rows")
def test_a_missed_target_is_no_failure(tmp_path, capsys):
    output = tmp_path / "deep" / "results.json"
    assert run.main(["--filter", "good", "--json", "--output", str(output)]) == 0
    written = json.loads(output.read_text())
    assert written == json.loads(capsys.readouterr().out)
    assert [row["reached"] for row in written["rows"]] == [False]


@pytest.mark.usefixtures("two_rows")
def test_a_crash_is_reported_and_the_others_go_on(tmp_path, capsys):
    assert run.main(["--quick", "--output", str(tmp_path / "results.json")]) == 1
    shown = capsys.readouterr()
    assert "9 x" in shown.out
    assert "ArithmeticError: on purpose" in shown.err


@pytest.mark.usefixtures("two_rows")
def test_rows_after_the_deadline_are_skipped(tmp_path):
    output = tmp_path / "results.json"
    assert run.main(["--minutes", "-1", "--output", str(output)]) == 0
    rows = json.loads(output.read_text())["rows"]
    assert [row["status"] for row in rows] == ["skipped", "skipped"]


@pytest.mark.usefixtures("two_rows")
def test_a_filter_without_rows_lists_them(capsys):
    assert run.main(["--filter", "nothing"]) == 1
    assert capsys.readouterr().out.split() == ["good", "bad"]
