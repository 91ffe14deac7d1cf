"""`neuronjax run` and `check` on functions and saved programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import neuronjax as nj
from neuronjax import cli
from neuronjax.cli.sources import draw, parse_shapes
from neuronjax.errors import is_library
from neuronjax.testing.bits import difference
from tests.cli.test_commands import fits

PROGRAM = """
import jax, jax.numpy as jnp

def layer(x, w):
    return {"out": jnp.tanh(x @ w), "sum": (x @ w).sum()}

def known(x):
    return x * 2

known.example_args = (jnp.arange(4.0),)

def argmax(x):
    return jnp.argmax(x)

argmax.example_args = lambda: (jax.ShapeDtypeStruct((8,), jnp.float32),)
"""
SHAPES = "f32[4,8] f32[8,3]"


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a command in a folder with a program and a terminal of 80 columns."""
    (tmp_path / "cli_program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *arguments: CliRunner().invoke(cli.app, arguments)


@pytest.fixture
def saved(tmp_path):
    """A jax.export artifact."""
    function = jax.jit(lambda x, w: jnp.tanh(x @ w))
    arguments = parse_shapes(SHAPES)
    exported = jax.export.export(function, platforms=["cpu"])(*arguments)
    path = tmp_path / "saved.jaxexport"
    path.write_bytes(exported.serialize())
    return str(path)


# -- run -------------------------------------------------------------------------------


def test_run_a_function(run):
    result = run("run", "cli_program.py:layer", "--args", SHAPES, "--policy", "bf16")
    assert result.exit_code == 0, result.output
    assert fits(result.stdout)
    for word in ("out", "float32[4,3]", "sum", "float32[]", "TensorE", "ScalarE"):
        assert word in result.stdout


def test_functions_of_the_users_other_files_are_named(run):
    Path("cli_importing.py").write_text(
        "import jax\nfrom os.path import join\nimport numpy as np\n"
        "from jax import grad\nfrom cli_program import known, layer\n"
        "step = jax.jit(layer)\n"
    )
    result = run("run", "cli_importing.py:knwon")
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "did you mean known? its functions: known, layer, step" in said
    assert said.endswith("step")
    listed = run("profile", "cli_importing.py").stderr
    assert "its functions: known, layer, step" in " ".join(listed.split())


def test_run_gives_the_numbers_of_the_chip(run):
    result = run("run", "cli_program.py:known", "--output", "out.npz")
    assert result.exit_code == 0, result.output
    assert np.load("out.npz")["result"].tolist() == [0.0, 2.0, 4.0, 6.0]


@pytest.mark.slow
def test_run_json(run):
    arguments = ("run", "cli_program:layer", "--args", SHAPES, "--json")
    data = json.loads(run(*arguments, "--seed", "1").stdout)
    out = data["results"][0]
    assert out["name"] == "out"
    assert out["shape"] == [4, 3]
    assert -1 <= out["min"] < out["max"] <= 1
    assert (out["nan"], out["inf"]) == (0, 0)
    assert data["instructions"]["tensor"] >= 1
    assert json.loads(run(*arguments, "--seed", "1").stdout) == data


@pytest.mark.slow
def test_run_compares_with_jax(run):
    arguments = ("run", "cli_program.py:layer", "--args", SHAPES, "--compare")
    result = run(*arguments, "--policy", "bf16")
    assert fits(result.stdout)
    assert "Differences to jax.jit" in result.stdout
    data = json.loads(run(*arguments, "--policy", "bf16", "--json").stdout)
    found = data["results"][0]["difference"]
    assert 0 < found["relative_l2"] < 0.05
    assert found["max_ulp"] > 1
    assert not found["equal"]


def test_run_takes_inputs(run):
    x, w = np.eye(4, 8, dtype=np.float32), np.ones((8, 3), np.float32)
    np.savez("by_number.npz", x, w)
    arguments = ("run", "cli_program.py:layer", "--args", SHAPES, "--json")
    data = json.loads(run(*arguments, "--inputs", "by_number.npz").stdout)
    assert data["results"][1]["max"] == 12.0
    np.savez("wrong.npz", x, w.T)
    result = run(*arguments, "--inputs", "wrong.npz")
    assert result.exit_code == 2
    assert "shape (3, 8)" in result.stderr
    np.savez("short.npz", x)
    assert "has neither" in run(*arguments, "--inputs", "short.npz").stderr


@pytest.mark.slow
def test_run_a_saved_program(run, saved):
    x = np.random.default_rng(0).standard_normal((4, 8), np.float32)
    w = np.random.default_rng(1).standard_normal((8, 3), np.float32)
    np.savez("inputs.npz", x, w)
    result = run("run", saved, "--inputs", "inputs.npz", "--output", "out.npz")
    assert result.exit_code == 0, result.output
    expected = nj.jit(lambda x, w: jnp.tanh(x @ w))(x, w)
    np.testing.assert_array_equal(np.load("out.npz")["result"], expected)
    assert run("run", saved).exit_code == 0
    assert "without a function for jax.jit" in run("run", saved, "--compare").stderr


def test_narrow_floats_are_stored_as_float32(run):
    Path("narrow.py").write_text("def f(x): return x\n")
    result = run("run", "narrow.py:f", "--args", "bf16[4]", "--output", "out.npz")
    assert result.exit_code == 0, result.output
    assert np.load("out.npz")["result"].dtype == np.float32


# -- check -----------------------------------------------------------------------------


def test_check_a_function(run):
    result = run("check", "cli_program.py:argmax", "--target", "trn1")
    assert result.exit_code == 1
    assert fits(result.stdout)
    assert "variadic-reduction" in result.stdout
    assert "cli_program.py:13" in result.stdout
    assert run("check", "cli_program:layer", "--args", SHAPES).exit_code == 0


def test_check_json(run):
    data = json.loads(run("check", "cli_program.py:argmax", "--json").stdout)
    assert data["ok"] is False
    assert data["findings"][0]["rule"] == "variadic-reduction"


def test_check_takes_an_sdk(run):
    arguments = ("check", "cli_program.py:layer", "--args", SHAPES)
    assert "SDK 2.29" in run(*arguments, "--sdk", "2.29").stdout
    assert run(*arguments, "--sdk", "1.0").exit_code == 2


def test_check_a_saved_program(run, saved):
    result = run("check", saved, "--target", "trn1")
    assert result.exit_code == 0, result.output
    assert "Nothing found." in result.stdout


# -- sources ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run", "nothing.mlir"), "no such file"),
        (("run", "nothing.py"), "no such file"),
        (("run", "cli_program.py:nothing"), "layer, known, argmax"),
        (("run", "nothing.py:f"), "no such file"),
        (("run", "no_such_module:f"), "no module no_such_module"),
        (("run", "cli_program.py:layer"), "example_args"),
        (("run", "cli_program.py:layer", "--args", "f32[4"), "--args"),
        (("run", "cli_program.py:layer", "--args", "f31[4]"), "f31"),
        (("run", "cli_program.py:known", "--target", "trn9"), "unknown target"),
        (("run", "cli_program.py:known", "--policy", "fp9"), "fp9"),
        (("run", "cli_program.py:known", "--output", "no/x.npz"), "no folder no"),
        (("run", "cli_program.py:known", "--inputs", "no.npz"), "no.npz"),
        (("check", "nothing.mlir"), "no such file"),
        (("check", "cli_program.py"), "no function is named"),
    ],
)
def test_a_wrong_source_is_a_message_and_status_2(run, arguments, expected):
    result = run(*arguments)
    assert result.exit_code == 2
    assert expected in result.stderr.replace("\n", " ")
    assert "remedy: " in result.stderr


def test_malformed_programs_are_a_message_and_status_2(run):
    Path("broken.mlir").write_text("func.func @main(")
    for command in ("run", "check"):
        result = run(command, "broken.mlir")
        assert result.exit_code == 2
        assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "cli_program.py:layer", "--args", "f32[4,8] f32[4,3]"),
        ("profile", "cli_program.py:layer", "--args", "f32[4,8] f32[4,3]"),
        ("check", "imports_nothing.py:layer"),
    ],
)
def test_an_error_of_a_function_is_shown_without_our_lines(run, arguments):
    Path("imports_nothing.py").write_text("import nothing_there")
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("Traceback")
    assert "/neuronjax/" not in result.stderr
    assert len(result.stderr.splitlines()) < 10


def test_an_error_of_a_module_is_shown_from_its_own_line_on(run):
    Path("divides_by_zero.py").write_text("1 / 0")
    lines = run("check", "divides_by_zero:layer").stderr.splitlines()
    assert "divides_by_zero.py" in next(line for line in lines if "File" in line)


def test_a_wrong_option_is_a_message_where_packages_are_a_distribution_s(
    run, monkeypatch
):
    """Debian's Python, and Colab's, have them in dist-packages."""
    monkeypatch.setattr("neuronjax.cli.application.is_library", _of_debian)
    result = run("check")
    assert result.exit_code == 2
    assert "Missing argument" in result.stderr


def _of_debian(file: str) -> bool:
    return is_library(file.replace("site-packages", "dist-packages"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32", [((), "float32")]),
        ("f32[8,16] i32[4]", [((8, 16), "float32"), ((4,), "int32")]),
        ("bf16[ 2 , 3 ], pred[1]", [((2, 3), "bfloat16"), ((1,), "bool")]),
        ("float8_e4m3fn[2] u8[]", [((2,), "float8_e4m3fn"), ((), "uint8")]),
    ],
)
def test_parse_shapes_reads_dtypes_and_sizes(text, expected):
    assert [(s.shape, s.dtype.name) for s in parse_shapes(text)] == expected


def test_values_are_drawn_by_dtype():
    generator = np.random.default_rng(0)
    for dtype in ("float32", "bfloat16", "int32", "uint8", "bool", "float8_e5m2"):
        (kind,) = parse_shapes(f"{dtype}[100]")
        values = draw(kind, generator)
        assert values.dtype == kind.dtype
        assert values.shape == (100,)
        if values.dtype.kind in "iu":
            assert set(values.tolist()) <= set(range(8))


# -- differences -----------------------------------------------------------------------


def test_difference_counts_elements_and_ulps():
    a = np.array([1.0, 2.0, np.inf, np.nan, -0.0], np.float32)
    assert difference(a, a).equal
    b = a.copy()
    b[0] = np.nextafter(np.float32(1), np.float32(2))
    b[4] = 0.0
    found = difference(a, b)
    assert (found.differing, found.max_ulp) == (1, 1.0)
    assert found.max_abs == 2.0**-23
    assert found.relative_l2 == pytest.approx(2.0**-23 / 5**0.5, rel=1e-3)


def test_a_nan_on_one_side_is_infinitely_far():
    a = np.array([1.0, np.nan], np.float32)
    found = difference(a, np.ones(2, np.float32))
    assert found.max_abs == found.max_ulp == np.inf


def test_ulps_across_zero_and_of_narrow_dtypes():
    smallest = np.array([5e-324, 1.0])
    assert difference(smallest, np.array([-5e-324, 1.0])).max_ulp == 2
    narrow = np.asarray(jnp.array([1.0, 256.0], jnp.bfloat16))
    other = np.asarray(jnp.array([1.0, 258.0], jnp.bfloat16))
    assert difference(narrow, other).max_ulp == 1
    assert difference(np.array([1, 2]), np.array([1, 5])).max_ulp is None
    assert difference(np.zeros(0), np.zeros(0)).equal
    found = difference(np.array([1 + 2j]), np.array([1 + 3j]))
    assert (found.differing, found.max_abs) == (1, 1.0)


def test_arguments_that_do_not_fit_name_the_parameters(run):
    result = run("profile", "cli_program.py:layer", "--args", "f32[4,8]")
    assert result.exit_code == 2
    text = " ".join(result.output.split())
    assert "(x, w)" in text
    assert "example_args" in text
    doubles = run("profile", "cli_program.py:layer", "--args", "f64[4] f32")
    assert doubles.exit_code == 2
    assert "no NeuronCore has it" in " ".join(doubles.output.split())


# -- scripts ---------------------------------------------------------------------------

SCRIPT = """
import sys
import jax, jax.numpy as jnp
from beside import step

print(sys.argv[1:], __name__, type(step).__name__, step(jnp.full((2, 2), 1.01))[0, 0])
sys.exit(3)
"""
BESIDE = "from jax import jit\n\n@jit\ndef step(x):\n    return x @ x\n"


@pytest.fixture
def script(run, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text(BESIDE)
    return run


@pytest.mark.parametrize(
    "before", [("run", "--policy", "bf16"), ("--policy", "bf16")], ids=" ".join
)
def test_a_script_is_emulated_with_its_own_arguments(script, before, monkeypatch):
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    given = ["--policy", "x", "--seed", "3", "other.py"]
    argv, path = list(sys.argv), list(sys.path)
    result = script(*before, "train.py", *given)
    assert result.exit_code == 3, result.output
    # 1.01 in bf16 is 1.0078125, and twice its square 2.03137.
    assert result.stdout.startswith(f"{given} __main__ Emulated 2.0313")
    assert "train.py on trn2, LNC 2, policy bf16" in result.stderr
    assert (sys.argv, sys.path) == (argv, path)


@pytest.mark.slow
def test_a_script_alone_is_run(script, monkeypatch):
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    result = script("train.py")
    assert result.exit_code == 3
    assert "[] __main__ Emulated 2.04" in result.stdout


@pytest.mark.parametrize(
    ("text", "first"),
    [("\ndef f():\n    return {}[0]\nf()\n", 4), ("x = (\n", 1)],
    ids=["raises", "syntax"],
)
def test_an_error_of_a_script_is_shown_from_its_first_line(run, tmp_path, text, first):
    (tmp_path / "broken.py").write_text(text)
    result = run("broken.py")
    assert result.exit_code == 1
    places = [line for line in result.stderr.splitlines() if "File " in line]
    assert places[0].strip().startswith(f'File "broken.py", line {first}')
    assert "runpy" not in result.stderr


def test_what_only_functions_have_is_refused_beside_a_script(script):
    result = script("run", "--args", "f32[2]", "train.py")
    assert result.exit_code == 2
    assert "a script takes no --args" in result.output


def test_shapes_are_collected(run):
    once = run("run", "cli_program.py:layer", "--args", SHAPES, "--json")
    first, second = SHAPES.split()
    twice = run(
        "run", "cli_program.py:layer", "--args", first, "--args", second, "--json"
    )
    assert once.exit_code == 0, once.output
    assert twice.stdout == once.stdout
    assert len(parse_shapes([first, SHAPES])) == 3


def test_the_version_alone(run):
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"{nj.__version__}\n")


@pytest.mark.parametrize("kept", [True, False])
def test_commands_that_run_programs_keep_what_was_compiled(run, tmp_path, kept):
    folder = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NEURONJAX_CACHE_DIR", str(tmp_path / "cache"))
            option = [] if kept else ["--no-cache"]
            result = run("compare", "cli_program.py:known", *option)
        found = jax.config.jax_compilation_cache_dir
    finally:
        jax.config.update("jax_compilation_cache_dir", folder)
    assert result.exit_code in (0, 1), result.output
    assert (str(found or "").startswith(str(tmp_path / "cache"))) is kept
