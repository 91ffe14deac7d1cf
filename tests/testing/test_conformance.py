"""The published vectors: made anew, run, and compared with the oracles."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from neuronjax.cli import app as registered
from neuronjax.cli.application import app
from neuronjax.errors import InvalidProgramError
from neuronjax.testing import conformance
from neuronjax.testing.conformance import PUBLISHED, VERSION, Case, run
from neuronjax.testing.runners import MlDtypes, Neuronjax
from tests.testing.oracle_runner import Oracles
from tests.testing.vector_cases import cases
from tests.testing.vector_files import FUNCTIONS, encoded

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def published():
    return conformance.read()


def outcomes(report):
    return {
        family: {r.outcome for r in report.results if r.case.family == family}
        for family in {r.case.family for r in report.results}
    }


def test_the_set_is_small_and_whole(published):
    sizes = [path.stat().st_size for path in PUBLISHED.iterdir()]
    assert sum(sizes) < 3 << 20
    assert len({case.name for case in published}) == len(published) == 114
    assert {case.function for case in published} == set(FUNCTIONS)
    for case in published:
        for array in (*case.inputs.values(), *case.outputs.values()):
            assert array.dtype.kind == "u"
            assert array.size


def test_ml_dtypes_casts_alike(published):
    report = run(MlDtypes(), published, "ml_dtypes")
    assert not report.failed
    passed = [r.case.name for r in report.results if r.outcome == "passed"]
    assert len(passed) == 8
    assert all(name.endswith("/rne/ieee") for name in passed)
    assert "casts              8        0        46" in str(report)


@pytest.mark.slow_cases("collectives")
@pytest.mark.parametrize(
    "family",
    ["sparsity", "collectives", "mx", "matmul"],
)
def test_oracles_agree(published, family):
    chosen = [case for case in published if case.family == family]
    report = run(Oracles(), chosen, "oracles")
    assert outcomes(report) == {family: {"passed"}}, str(report)


@slow
def test_neuronjax_agrees(published):
    report = run(Neuronjax(), published, "neuronjax")
    assert set().union(*outcomes(report).values()) == {"passed"}, str(report)


@slow
def test_the_generator_reproduces_the_files():
    files = encoded(cases())
    assert set(files) == {path.name for path in PUBLISHED.iterdir()}
    for name, data in files.items():
        assert data == (PUBLISHED / name).read_bytes(), name


class Wrong(MlDtypes):
    """One code in one format is off by one."""

    def cast(self, x, *, format, **options):
        codes = super().cast(x, format=format, **options).copy()
        if format == "float8_e5m2":
            codes[3] ^= 1
        return codes


def test_a_wrong_runner_is_told_where(published):
    report = run(Wrong(), published, "wrong")
    [failed] = report.failed
    [difference] = failed.differences
    assert failed.case.name == "cast/float8_e5m2/rne/ieee"
    assert (difference.index, difference.differing) == ((3,), 1)
    assert "cast/float8_e5m2/rne/ieee: result[3]" in str(report)
    x = int(failed.case.inputs["x"][3])
    assert failed.call == (
        f"cast(x=[{x:#010x}], format='float8_e5m2', rounding='rne', overflow='ieee')"
    )
    assert report.records[published.index(failed.case)]["call"] == failed.call
    assert sum(r["outcome"] == "failed" for r in report.records) == 1


class WrongScale(Oracles):
    """One scale of one case is off by one."""

    def quantize_mx(self, x, *, format, scale_rule):
        found = super().quantize_mx(x, format=format, scale_rule=scale_rule)
        found["scales"] = found["scales"].copy()
        found["scales"][7, 2] ^= 1
        return found


def test_the_block_of_a_wrong_scale_is_printed(published):
    [case] = [c for c in published if c.name == "quantize_mx/mxfp4_e2m1/neuron"]
    [failed] = run(WrongScale(), [case]).failed
    block = ", ".join(f"{x:#010x}" for x in case.inputs["x"][7, 64:80])
    options = "format='mxfp4_e2m1', scale_rule='neuron'"
    assert failed.call == f"quantize_mx(x=[{block}], {options})"


def test_progress_is_shown(published, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    chosen = [case for case in published if case.family == "sparsity"]
    assert run(Oracles(), chosen, progress=True).failed == ()
    assert "cases" in capsys.readouterr().err
    run(Oracles(), chosen)
    assert capsys.readouterr().err == ""


def test_what_is_missing_or_not_returned():
    case = Case(
        family="casts",
        name="x",
        function="cast",
        parameters={},
        inputs={},
        outputs={"a": np.uint8([1]), "b": np.uint8([2])},
    )
    assert run(object(), [case]).results[0].outcome == "skipped"

    class Half:
        def cast(self):
            return {"a": np.uint8([1])}

    [difference] = run(Half(), [case]).results[0].differences
    assert str(difference) == "b: is not returned"


def test_a_damaged_set_is_refused(tmp_path):
    for path in PUBLISHED.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    data = bytearray((tmp_path / "mx.npz").read_bytes())
    data[-200] ^= 1
    (tmp_path / "mx.npz").write_bytes(bytes(data))
    with pytest.raises(InvalidProgramError, match=r"mx\.npz does not have the hash"):
        conformance.read(tmp_path)
    (tmp_path / "mx.npz").unlink()
    with pytest.raises(InvalidProgramError, match="neuronjax conformance --write"):
        conformance.read(tmp_path)


def test_runners_by_name():
    assert isinstance(conformance.load_runner("ml_dtypes"), MlDtypes)
    named = conformance.load_runner("neuronjax.testing.runners:Neuronjax")
    assert isinstance(named, Neuronjax)
    with pytest.raises(InvalidProgramError, match="no runner 'nothing'"):
        conformance.load_runner("nothing")


def test_the_command():
    assert registered is app
    shown = CliRunner().invoke(app, ["conformance", "ml_dtypes"])
    assert shown.exit_code == 0, shown.output
    assert f"Conformance of ml_dtypes, vectors version {VERSION}" in shown.output
    wrong = f"{__name__}:Wrong"
    failed = CliRunner().invoke(app, ["conformance", wrong, "--json"])
    assert failed.exit_code == 1
    assert len(json.loads(failed.output)) == 114


def test_the_command_copies_the_published_set(tmp_path, published):
    paths = conformance.write(tmp_path / "copied")
    assert {path.name for path in paths} == {path.name for path in PUBLISHED.iterdir()}
    assert paths[-1].name == conformance.MANIFEST
    found = conformance.read(tmp_path / "copied")
    assert [case.name for case in found] == [case.name for case in published]
