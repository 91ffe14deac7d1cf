"""The example that keeps kda-for-trainium's contract, on a bench of our own."""

from __future__ import annotations

import json
import textwrap

import pytest

from examples import kda_contract

pytestmark = pytest.mark.slow

REFERENCE = """
    import numpy as np

    def get_inputs():
        return [np.random.normal(size=(256, 512)).astype(np.float32)]

    def forward(x):
        return x * 2 + 1

    def transform_to_nki_inputs(inputs):
        return [inputs[0].reshape(2, 128, 512)]

    def transform_nki_outputs(results, expected):
        return [np.reshape(results, expected.shape)]
"""
KERNEL = """
    import neuronxcc.nki as nki
    import neuronxcc.nki.language as nl

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(2):
            nl.store(out[i], nl.load(x[i]) * 2 + 1)
        return out
"""
SUMMARY = {
    "double": {"cases": {"2": {"impls": [{"task": "task.py", "kernel": "kernel.py"}]}}}
}


@pytest.fixture
def verify(tmp_path, monkeypatch, capsys):
    """Runs the example in a folder with a bench: status and what it printed."""
    wrong = KERNEL.replace("* 2", "* 2.001")
    files = {"task.py": REFERENCE, "kernel.py": KERNEL, "wrong.py": wrong}
    for name, text in files.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NKIBENCH_ROOT", str(tmp_path))

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["verify.py", *arguments])
        return kda_contract.main(), capsys.readouterr().out

    return run


def test_the_contract_is_kept(verify, tmp_path):
    status, printed = verify("--build-baselines")
    assert (status, "PASS double" in printed) == (0, True)
    assert "geomean 1.00x of 1, predicted" in printed
    baseline = json.loads((tmp_path / "baselines.json").read_text())["double"]
    assert baseline.pop("baseline_latency_ms") > 0
    kernel = str(tmp_path / "kernel.py")
    assert baseline == {"case_id": "2", "kernel": kernel, "predicted": True}
    status, printed = verify("--op", "double", "--fast", "--candidate", "wrong.py")
    assert status == 1
    assert "FAIL double" in printed
    assert "seed 0: relative L2" in printed


def test_options_that_exclude_one_another(verify):
    with pytest.raises(SystemExit):
        verify("--candidate", "wrong.py")
    with pytest.raises(SystemExit, match="no op"):
        verify("--op", "other")
