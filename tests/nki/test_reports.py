"""Public reports on chips and compilers, and where a kernel meets one."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import neuronjax as nj
import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki
from neuronjax.nki.releases.release import RELEASES, resolve_release
from neuronjax.nki.releases.reports import REPORTS, reports_met
from neuronjax.nki.releases.traced import TRACED
from tests.diagnostics.judging.kernels import changed, reference, written


@pytest.mark.parametrize("report", REPORTS, ids=lambda r: r.source + " " + r.traced)
def test_every_report_has_valid_fields(report) -> None:
    assert set(report.releases) <= {r.name for r in RELEASES}
    assert report.releases
    assert set(report.chips) <= {"trn1", "inf2", "trn2", "trn3"}
    assert report.traced in TRACED
    assert re.fullmatch(r"sdk#\d+|kiln notes", report.source)
    assert report.does
    assert report.documented
    assert report.remedy


@nki.jit
def every(x, b, slots, gathers):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile, column = nl.load(x), nl.load(b)
    nisa.activation(dst=tile, op=nl.copy, data=tile, scale=column)
    nisa.activation(dst=tile, op=nl.relu, data=tile, bias=column)
    nisa.activation(dst=tile, op=nl.copy, data=tile, bias=column)
    slot = nl.ndarray((128, 1), nl.uint32, buffer=nl.sbuf)
    nisa.dma_copy(dst=slot, src=slots)
    turned = nl.ndarray((128, 128), x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=turned, value=0.0)
    if gathers:  # trn1 cannot
        rows = x.ap([[128, 128], [1, 128]], vector_offset=slot, indirect_dim=0)
        nisa.dma_transpose(dst=turned, src=rows, oob_mode=nisa.oob_mode.skip)
    sums = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
    whole = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
    for _ in range(2):
        nisa.nc_matmul(sums[:, 128:256], tile, turned)
        nisa.nc_matmul(whole, tile, turned)
    nisa.tensor_copy(dst=turned, src=whole)
    nisa.dma_copy(dst=out, src=turned)
    return out


ARGUMENTS = (
    np.ones((128, 128), ml_dtypes.bfloat16),
    np.ones((128, 1), np.float32),
    np.zeros((128, 1), np.uint32),
)
MET = {
    ("trn1", None): ["copy_with_bias", "part_of_a_bank"],
    ("trn1", "0.2"): ["copy_with_bias"],
    ("trn2", None): ["gather_that_skips", "not_four_dims", "part_of_a_bank"],
    ("trn2", "0.2"): ["not_four_dims"],
    ("trn2", "0.5"): [],
    ("trn3", None): ["gather_that_skips", "part_of_a_bank"],
    ("trn3", "0.6"): ["gather_that_skips", "part_of_a_bank"],
}


@pytest.mark.parametrize(("chip", "release"), MET)
def test_what_a_kernel_meets_on_which_chip(chip: str, release: str | None) -> None:
    program = every.with_target(chip).trace(*ARGUMENTS, chip != "trn1")
    asked = None if release is None else resolve_release(release)
    found = [*reports_met(program, asked)]
    assert sorted(report.traced for report, _ in found) == MET[chip, release]
    assert all("test_reports.py:" in location for _, location in found)


ADD = "nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)"
BIAS = f"""{ADD}
    zero = nl.ndarray((128, 1), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=zero, value=0.0)
    nisa.activation(dst=a, op=nl.copy, data=a, bias=zero)"""
TURNED = f"""{ADD}
    c = nl.ndarray((64, 128), dtype=nl.bfloat16, buffer=nl.sbuf)
    d = nl.ndarray((128, 64), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_copy(dst=d, src=a)
    nisa.dma_transpose(dst=c, src=d)"""


def test_the_judge_tells_of_reports_as_advice(tmp_path: Path) -> None:
    path = written(tmp_path, changed(ADD, BIAS))
    options = dict(reference=reference(tmp_path), seeds=(0,))
    verdict = nj.judge(path, target="trn1", **options)
    (advice,) = (p for p in verdict.advice if p.rule == "hardware-report")
    assert verdict.accepted
    assert "trn1, NKI 0.2: it does not add bias=" in advice.message
    assert "sdk#1296" in advice.message
    assert advice.remedy
    other = nj.judge(path, target="trn2", **options)
    assert not [p for p in other.advice if p.rule == "hardware-report"]


def test_what_a_release_refuses_is_a_limit_where_it_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, changed(ADD, TURNED))
    options = dict(reference=reference(tmp_path), seeds=(0,), target="trn2")
    named = nj.judge(path, nki="0.2", **options)
    assert not named.accepted
    (limit,) = (p for p in named.limits if p.rule == "hardware-report")
    assert "unless src has 4 dimensions" in limit.message
    assert nj.judge(path, **options).accepted
