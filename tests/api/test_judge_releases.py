"""Verdicts by the rules of an NKI release, and what a kernel loses by moving."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import neuronjax as nj
from neuronjax import nki
from neuronjax.cli import app
from neuronjax.diagnostics.judging.releases import NEWER_RULE, RULE, problems
from neuronjax.diagnostics.judging.verdict import KernelVerdict, Problem, from_json
from neuronjax.ir.kernel import KernelProgram
from neuronjax.nki import isa as nisa, language as nl
from neuronjax.nki.releases.release import resolve_release
from tests.diagnostics.judging.kernels import RIGHT, changed, first, reference, written

OLDER = """
import numpy as np
from neuronxcc import nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl


@nki.jit
def kernel(x, y):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    i, j = nl.arange(128)[:, None], nl.arange(64)[None, :]
    a = nl.load(x[i, j], mask=i < 128)
    b = nisa.tensor_tensor(a, nl.load(y), op=nl.add)
    nl.store(out, b)
    return out
"""


def judged(folder: Path, text: str, release: str) -> KernelVerdict:
    path = written(folder, text)
    return nj.judge(path, reference=reference(folder), seeds=(0,), nki=release)


def test_a_kernel_that_a_release_has_is_accepted(tmp_path: Path) -> None:
    verdict = judged(tmp_path, RIGHT, "2.30")
    assert verdict.accepted
    assert verdict.nki == "0.4"
    assert "kernel on trn2, LNC 2, NKI kernel by NKI 0.4, correct" in verdict.as_text()
    assert from_json(verdict.to_json()) == verdict


def test_a_name_that_a_release_lacks_is_a_limit_with_line_and_remedy(
    tmp_path: Path,
) -> None:
    text = changed("return out", "nl.fori_loop(0, 2, lambda i: None)\n    return out")
    verdict = judged(tmp_path, text, "0.5")
    assert not verdict.accepted
    assert verdict.correct  # it is compared all the same
    (limit,) = verdict.limits
    line = text.splitlines().index("    nl.fori_loop(0, 2, lambda i: None)") + 1
    assert limit.rule == RULE
    assert limit.location == f"{tmp_path / 'candidate.py'}:{line}"
    assert limit.message == "nki.language.fori_loop does not exist before 0.6 (RN 0.6)"
    assert "dynamic_range" in limit.remedy


@pytest.mark.slow
def test_the_older_style_where_it_is_there(tmp_path: Path) -> None:
    verdict = judged(tmp_path, OLDER, "neuronxcc-2.x")
    assert verdict.accepted
    assert verdict.correct
    assert verdict.advice == ()


@pytest.mark.slow
def test_a_kernel_that_cannot_be_traced_hears_of_its_release_too(
    tmp_path: Path,
) -> None:
    old = "    nisa.tensor_copy_dynamic_src(dst=a, src=a)\n    return out"
    verdict = judged(tmp_path, changed("    return out", old), "0.3")
    assert [p.rule for p in verdict.advice] == [NEWER_RULE, RULE]
    assert not verdict.accepted  # the emulator has the newest release's names


def by_release(
    folder: Path, text: str, release: str, program: KernelProgram | None = None
) -> dict[str, tuple[Problem, ...]]:
    return problems(written(folder, text), program, resolve_release(release))


def test_the_older_style_where_it_is_gone(tmp_path: Path) -> None:
    told = "\n".join(p.message for p in by_release(tmp_path, OLDER, "0.6")["limits"])
    for what in ("neuronxcc.nki is a compilation error", "arange", "mask=", "dst"):
        assert what in told
    before = by_release(tmp_path, OLDER, "0.3")
    assert before["limits"] == ()
    assert "deprecated" in before["advice"][0].message


def test_other_values_are_a_hazard(tmp_path: Path) -> None:
    text = first("nisa.quantize_mx(dst=x, src=y, dst_scale=x)")
    assert "block scales" in by_release(tmp_path, text, "0.4")["hazards"][0].message
    assert by_release(tmp_path, text, "0.5")["hazards"] == ()


@nki.jit
def through_psum(x: nl.NkiTensor) -> nl.NkiTensor:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.psum)
    nisa.memset(dst=tile, value=0.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_what_only_the_trace_knows(tmp_path: Path) -> None:
    program = through_psum.traced(np.zeros((128, 64), np.float32)).program
    (limit,) = by_release(tmp_path, RIGHT, "0.3", program)["limits"]
    assert "nki.isa.dma_copy reads no PSUM since 0.3" in limit.message
    assert limit.location.startswith(__file__)
    assert by_release(tmp_path, RIGHT, "0.2", program)["limits"] == ()


def test_equal_advice_is_said_once_with_its_count(tmp_path: Path) -> None:
    twice = "    if x is None:\n        y is x\n    return out"
    found = by_release(tmp_path, changed("    return out", twice), "0.6")
    (advice,) = found["advice"]
    assert "python: is" in advice.message
    assert advice.count == 2


def test_an_unknown_release_is_refused_before_tracing(tmp_path: Path) -> None:
    with pytest.raises(nj.InvalidProgramError, match="no NKI release '9'"):
        nj.judge(written(tmp_path, RIGHT), nki="9")


def test_moving_forward_and_back(tmp_path: Path) -> None:
    text = changed("return out", "nl.fori_loop(0, 2, lambda i: None)\n    return out")
    path = written(tmp_path, text)
    forward = nj.nki_diff(path, old="0.5", new="0.6")
    assert [(c.name, c.how) for c in forward.changes] == [
        ("nki.language.fori_loop", "gained")
    ]
    assert not forward.lost
    back = nj.nki_diff(path, old="0.6", new="0.5")
    assert [c.how for c in back.changes] == ["lost"]
    assert back.lost


def test_arguments_that_changed_places_are_lost_both_ways(tmp_path: Path) -> None:
    call = "nisa.dma_compute(a, [b], nl.add, [1.0])\n    return out"
    path = written(tmp_path, changed("return out", call))
    for old, new in (("0.2", "0.4"), ("0.4", "0.2")):
        assert nj.nki_diff(path, old=old, new=new).lost
    assert not nj.nki_diff(path, old="0.3", new="0.6").lost


def test_the_older_style_moves_from_the_last_beta_by_itself(tmp_path: Path) -> None:
    found = nj.nki_diff(written(tmp_path, OLDER))
    assert (found.old, found.new, found.lost) == ("neuronxcc-2.26", "0.6", True)
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == f"changes: {len(found.changes)}; lost: {len(found.changes)}"
    assert json.loads(found.to_json())["changes"][0]["how"] == "lost"
    newer = nj.nki_diff(written(tmp_path, RIGHT))
    assert (newer.old, newer.new, newer.changes) == ("0.3", "0.6", ())
    assert "nothing that the kernel uses differs" in str(newer)


@pytest.mark.parametrize(
    ("text", "what"),
    [("import numpy", "imports no NKI"), ("def f(:", "no Python"), (None, "cannot")],
)
def test_files_that_are_no_kernels(text: str | None, what: str, tmp_path: Path) -> None:
    path = tmp_path / "none.py" if text is None else written(tmp_path, text)
    with pytest.raises(nj.InvalidProgramError, match=what):
        nj.nki_diff(path)


@pytest.mark.parametrize(
    ("options", "status"),
    [((), 1), (("--from", "0.6", "--to", "0.6"), 0), (("--to", "9"), 2)],
)
def test_the_command(options: tuple[str, ...], status: int, tmp_path: Path) -> None:
    path = str(written(tmp_path, OLDER))
    done = CliRunner().invoke(app, ["nki-diff", path, *options, "--json"])
    assert done.exit_code == status, done.output
    if status == 2:
        assert "no NKI release '9'" in done.stderr
    else:
        assert json.loads(done.stdout)["lost"] == bool(status)
