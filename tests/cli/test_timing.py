"""`neuronjax profile`, `compare-targets` and `constants`."""

from __future__ import annotations

import json

import jax
import pytest
from typer.testing import CliRunner

from neuronjax import cli
from neuronjax.cli.sources import parse_shapes
from neuronjax.execution import stages
from tests.cli.test_commands import fits

PROGRAM = """
import jax, jax.numpy as jnp

def layer(x, w):
    return jnp.tanh(x @ w)

def halve(x):
    return jax.lax.while_loop(lambda x: x.max() > 1, lambda x: x / 2, x)

def train(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.sum(layer(x, w)))(w)
"""
SHAPES = "f32[256,512] f32[512,1024]"


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a command in a folder with a program and a terminal of 80 columns."""
    (tmp_path / "cli_timing.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *arguments: CliRunner().invoke(cli.app, arguments)


@pytest.mark.parametrize("command", ["profile", "compare-targets", "estimate"])
def test_whoever_waits_is_told_what_is_done(run, monkeypatch, command):
    said = []

    class Watch:
        def __init__(self, name):
            said.append(name)

        def stage(self, name):
            said.append(name)

        def end(self):
            said.append("end")

    monkeypatch.setattr(stages, "watch", Watch)
    assert run(command, "cli_timing.py:layer", "--args", SHAPES).exit_code == 0
    name, *_, last = said
    assert (name, last) == ("cli_timing.py:layer", "end")
    for stage in ("loading", "capturing, layer on ", "lowering, layer", "pricing, lay"):
        assert any(each.startswith(stage) for each in said)


# -- profile ---------------------------------------------------------------------------


def test_profile(run):
    result = run("profile", "cli_timing.py:layer", "--args", SHAPES)
    assert result.exit_code == 0, result.output
    assert fits(result.stdout)
    for word in ("layer on trn2, LNC 2", "TensorE", "nc_matmul", "What would save"):
        assert word in result.stdout
    assert "How sure: " in result.stdout
    assert " nearest " in result.stdout


def test_profile_by_line_with_all_figures(run):
    options = ("--by", "source", "--metrics", "--no-limits", "--lnc", "1")
    result = run("profile", "cli_timing.py:layer", "--args", SHAPES, *options)
    assert result.exit_code == 0, result.output
    assert fits(result.stdout)
    for word in ("cli_timing.py:5", "mfu_estimated_percent", "LNC 1"):
        assert word in result.stdout
    assert "What would save" not in result.stdout


def test_profile_by_phase(run):
    shapes = "f32[512,1024] f32[256,512]"
    options = ("--args", shapes, "--by", "phase", "--no-limits")
    result = run("profile", "cli_timing.py:train", *options)
    assert result.exit_code == 0, result.output
    table = result.stdout.partition("Phases: share")[2]
    for phase in ("forward", "backward", "optimizer"):
        assert f" {phase} " in table


def test_profile_json(run):
    options = ("--target", "trn3", "--policy", "mxfp8", "--batch", "0", "--json")
    result = run("profile", "cli_timing.py:layer", "--args", SHAPES, *options)
    data = json.loads(result.stdout)
    assert (data["target"], data["policy"]) == ("trn3", "mxfp8")
    assert data["metrics"]["model_flops"] == 2 * 256 * 512 * 1024
    assert data["limits"][0]["seconds"] < data["metrics"]["total_time"]


@pytest.mark.slow
def test_profile_writes_files(run, tmp_path):
    pytest.importorskip("perfetto")
    files = ("--plot", "p.png", "--perfetto", "p.pftrace", "--csv", "p.csv")
    options = ("--args", SHAPES, "--no-limits", *files)
    result = run("profile", "cli_timing.py:layer", *options)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "p.pftrace").stat().st_size > 100
    assert (tmp_path / "p.csv").read_text().startswith("engine,start_ts")


def test_profile_a_saved_program(run, tmp_path):
    function = jax.jit(lambda x, w: jax.numpy.tanh(x @ w))
    exported = jax.export.export(function, platforms=["cpu"])(*parse_shapes(SHAPES))
    (tmp_path / "saved.jaxexport").write_bytes(exported.serialize())
    options = ("--policy", "bf16", "--no-limits", "--json")
    saved = json.loads(run("profile", "saved.jaxexport", *options).stdout)
    source = ("cli_timing.py:layer", "--args", SHAPES)
    traced = json.loads(run("profile", *source, *options).stdout)
    assert saved["metrics"] == traced["metrics"]


def test_profile_says_what_it_assumed(run):
    result = run("profile", "cli_timing.py:halve", "--args", "f32[64]", "--no-limits")
    assert "iteration assumed" in result.stdout.replace("\n", " ")
    assert fits(result.stdout)
    options = ("--no-limits", "--trips", "cli_timing.py:8=10")
    result = run("profile", "cli_timing.py:halve", "--args", "f32[64]", *options)
    assert result.exit_code == 0, result.output
    assert "assumed" not in result.stdout


def test_profile_warns_of_what_does_not_fit(run):
    shapes = "f32[131072,65536] f32[65536,16]"
    result = run("profile", "cli_timing.py:layer", "--args", shapes, "--no-limits")
    assert "needs 32" in result.stdout
    assert "GiB of HBM" in result.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--by", "colour"), "'op', 'source', 'module', 'phase'"),
        (("--plot", "nowhere/p.png"), "there is no folder nowhere"),
        (("--lnc", "5"), "logical NeuronCores of size 5"),
        (("--peak", "fp7"), "peak 'fp7'"),
        (("--trips", "12"), "write FILE:LINE=N"),
    ],
)
def test_profile_names_wrong_options(run, options, words):
    result = run("profile", "cli_timing.py:layer", "--args", SHAPES, *options)
    assert result.exit_code == 2
    assert words in result.output


# -- compare-targets -------------------------------------------------------------------


def test_compare_targets(run):
    result = run("compare-targets", "cli_timing.py:layer", "--args", SHAPES)
    assert result.exit_code == 0, result.output
    assert fits(result.stdout)
    for word in ("trn1", "inf2", "trn2", "trn3", "TensorE"):
        assert word in result.stdout


def test_compare_targets_says_on_which_chips_no_program_was_measured(run):
    result = run("compare-targets", "cli_timing.py:layer", "--args", SHAPES)
    sure = [line for line in result.stdout.splitlines() if line.startswith("80 %")]
    without = "(no similar program ran on this chip)"
    unknown = [line.split()[3] for line in sure if without in line]
    assert len(sure) == 4
    assert unknown == ["inf2:"]


def test_compare_targets_says_why_one_cannot(run):
    chosen = ("--target", "trn1", "--target", "trn3", "--policy", "mxfp8")
    options = ("--args", SHAPES, *chosen)
    result = run("compare-targets", "cli_timing.py:layer", *options)
    assert "trn1 has no microscaling" in result.stdout
    both = json.loads(
        run("compare-targets", "cli_timing.py:layer", *options, "--json").stdout
    )
    assert "error" in both[0]
    assert both[1]["seconds"] > 0
    assert both[1]["fits"]


# -- constants -------------------------------------------------------------------------


def test_constants(run):
    result = run("constants")
    assert result.exit_code == 0
    assert fits(result.stdout)
    for word in ("DMA_SEMAPHORE", "ASSUMPTION", "fitted to", "LOOP_TURN"):
        assert word in result.stdout


def test_constants_json(run):
    every = json.loads(run("constants", "--json").stdout)
    assumed = json.loads(run("constants", "--assumptions", "--json").stdout)
    assert 0 < len(assumed) < len(every)
    assert all(constant["is_assumption"] for constant in assumed)
    assert all(constant["source"] for constant in every)


def test_constants_of_no_name(run):
    result = run("constants", "zebra")
    assert result.exit_code == 2
    assert "no constant has 'zebra'" in result.output
