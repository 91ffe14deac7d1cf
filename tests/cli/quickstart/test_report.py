"""The quickstart's tables, picture and JSON, from made-up runs."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from neuronjax.cli.quickstart import report
from neuronjax.cli.quickstart.data import Corpus
from neuronjax.cli.quickstart.experiment import NATIVE, QuickstartRun, Setup
from neuronjax.cli.quickstart.train import TINY

CORPUS = Corpus(train=np.array([1, 2] * 8), heldout=np.array([1, 2]))


def made_up(machine: Setup, seconds: float, **engines: int) -> QuickstartRun:
    dtypes = ("float8_e4m3fn", "float8_e5m2") if engines else ("float32",)
    return QuickstartRun(
        machine=machine,
        losses=[5.0] * 5 + [3.0] * 10,
        heldout_loss=2.0,
        seconds_per_step=seconds,
        compile_seconds=123.4,
        instructions=engines,
        matmul_dtypes=dtypes,
    )


RUNS = [
    made_up(NATIVE, 0.5),
    made_up(Setup.parse("trn1/bf16"), 1.25, tensor=21, vector=12345, dma=99999),
    made_up(Setup.parse("trn2/fp8"), 12.5, tensor=21, vector=1589, gpsimd=1403),
]


def rendered(table) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("table", [report.results_table, report.engines_table])
def test_tables_fit_80_columns(table):
    lines = rendered(table(RUNS))
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


def test_results_row():
    row = rendered(report.results_table(RUNS))[5].split()
    perplexity = f"{math.exp(2.0):.3f}"
    expected = [
        "trn1",
        "bf16",
        "3.0000",
        "2.0000",
        perplexity,
        "1.250",
        "2.50",
        "123.4",
    ]
    assert row == expected


def test_engines_rows_leave_out_the_native_run():
    text = "\n".join(rendered(report.engines_table(RUNS)))
    assert "host" not in text
    assert "e4m3fn, e5m2" in text
    assert "12345" in text


def test_plot_is_a_png(tmp_path):
    report.plot(RUNS, CORPUS, tmp_path / "curves")
    assert (tmp_path / "curves").read_bytes().startswith(b"\x89PNG\r\n")


def test_json_holds_everything():
    document = json.loads(report.as_json(RUNS, TINY, CORPUS))
    assert document["recipe"]["model"]["width"] == TINY.model.width
    assert document["unigram_entropy_nats"] == pytest.approx(math.log(2))
    native, _, trn2 = document["runs"]
    assert native["ratio_to_native"] == 1
    assert trn2["machine"] == {"target": "trn2", "policy": "fp8"}
    assert trn2["ratio_to_native"] == 25
    assert trn2["instructions"]["vector"] == 1589
    assert len(trn2["losses"]) == 15
