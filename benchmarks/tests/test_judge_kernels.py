"""Public kernels are judged in separate processes; the corpus here has one kernel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import judge_kernels
from benchmarks.validation import corpus as corpora
from tests.diagnostics.judging import kernels


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    bench = tmp_path / "AccelOpt" / "NKIBench"
    (bench / "kernels").mkdir(parents=True)
    (bench / "reference").mkdir()
    kernels.written(bench / "kernels", kernels.RIGHT, "plus_M128_N64_0.py")
    wrong = kernels.changed("op=nl.add", "op=nl.multiply")
    kernels.written(bench / "kernels", wrong, "plus_M128_N64_1.py")
    kernels.written(bench / "reference", kernels.REFERENCE, "plus_M128_N64_numpy_0.py")
    return tmp_path


def test_the_op_is_what_stands_before_the_sizes():
    path = Path("kernels/rope_single_freq_apply_B1_H64_N4096_D128_0.py")
    assert corpora.op_of(path) == "rope_single_freq_apply"


@pytest.mark.slow
def test_every_kernel_has_an_entry(corpus, tmp_path, capsys):
    path = tmp_path / "found.json"
    assert judge_kernels.main([str(corpus), "--output", str(path)]) == 0
    right, wrong = json.loads(path.read_text())["entries"]
    assert (right["accepted"], right["correct"], right["why"]) == (True, True, "")
    assert (wrong["accepted"], wrong["correct"]) == (False, False)
    assert right["largest_bytes"] > 1e7
    assert "1 of 2 accepted" in capsys.readouterr().out


@pytest.mark.slow
def test_what_takes_too_long_is_ended(corpus):
    path = corpus / "AccelOpt" / "NKIBench" / "kernels" / "plus_M128_N64_0.py"
    found = judge_kernels.judged("plus", path, corpus, limit=0.1)
    assert not found.accepted
    assert found.why.startswith("status -9")
