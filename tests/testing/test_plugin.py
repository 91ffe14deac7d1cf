"""The pytest plugin, in pytest runs of its own."""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import neuronjax
import neuronjax_pytest

pytest_plugins = ["pytester"]
slow = pytest.mark.slow

PLUGIN = ("-p", "neuronjax_pytest")

GUARDED = """
    import numpy as np
    import pytest

    @pytest.mark.neuron_target("trn2", "trn3")
    def test_double(golden):
        golden("double", lambda x: x * FACTOR)(np.arange(3, dtype=np.float32))
"""


@pytest.fixture(scope="module", autouse=True)
def every_module_is_loaded():
    """`runpytest_inprocess` unloads what it is the first to import. Later tests would
    import it again, and its classes would differ from those in use."""
    for module in pkgutil.walk_packages(neuronjax.__path__, "neuronjax."):
        if not module.name.endswith("_child"):
            importlib.import_module(module.name)


def test_loading_it_does_not_import_jax():
    code = (
        "import sys, neuronjax_pytest; "
        "assert not {'jax', 'neuronjax', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_targets_and_policies_vary_a_test(pytester):
    pytester.makepyfile("""
        import pytest

        @pytest.mark.neuron_target("trn2", "trn3")
        @pytest.mark.neuron_policy("bf16")
        def test_both(neuron_target, neuron_policy):
            pass

        def test_default(neuron_target, neuron_policy):
            assert (neuron_target, neuron_policy) == ("trn1", None)

        def test_neither():
            pass
    """)
    result = pytester.runpytest_inprocess(*PLUGIN, "-v", "--neuronjax-target", "trn1")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines_random(
        ["*test_both[[]trn2-bf16]*", "*test_both[[]trn3-bf16]*", "*[[]trn1-sdk]*"]
    )


@pytest.mark.slow
def test_results_are_approximately_those_of_jax(pytester):
    """With a tolerance: pytest 9.2 asks a JAX array for its `.flat`."""
    before = pytest.approx
    pytester.makepyfile("""
        import jax.numpy as jnp
        import numpy as np
        import pytest
        from pytest import approx

        def function(x):
            return jnp.tanh(x), jnp.sum(x)

        @pytest.mark.neuron_policy("bf16")
        def test_near(neuron_jit):
            x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
            emulated, native = neuron_jit(function)(x), function(x)
            for ours, theirs in zip(emulated, native):
                assert ours == approx(theirs, rel=1e-2, abs=1e-6)
                assert pytest.approx(theirs, rel=1e-2, abs=1e-6) == ours
                assert ours != approx(theirs + 1, rel=1e-2)
            assert 0.3 == approx(0.1 + 0.2)
    """)
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)
    assert pytest.approx is before


@pytest.mark.slow
def test_bad_markers_and_settings_are_refused(pytester):
    pytester.makepyfile("""
        import pytest

        @pytest.mark.neuron_target()
        def test_none():
            pass
    """)
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.stdout.fnmatch_lines(["*the marker neuron_target names nothing*"])
    pytester.makeini("[pytest]\nneuronjax_golden_program = never")
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.stderr.fnmatch_lines(["*'never': choose of warn, bits, fail*"])


def test_markers_are_known(pytester):
    pytester.makepyfile(GUARDED)
    result = pytester.runpytest_inprocess(
        *PLUGIN, "--strict-markers", "--collect-only", "-q"
    )
    result.stdout.fnmatch_lines(["*test_double[[]trn2]", "*test_double[[]trn3]"])


def test_the_environment_is_left_alone(pytester, monkeypatch):
    monkeypatch.setenv("NEURONJAX_GOLDEN_PROGRAM", "bits")
    monkeypatch.delenv("NEURONJAX_UPDATE_GOLDEN", raising=False)
    pytester.makepyfile("""
        import os

        def test_inside():
            assert os.environ["NEURONJAX_UPDATE_GOLDEN"] == "1"
            assert os.environ["NEURONJAX_GOLDEN_PROGRAM"] == "edits"
    """)
    result = pytester.runpytest_inprocess(*PLUGIN, "--neuronjax-update-golden")
    result.assert_outcomes(passed=1)
    assert os.environ["NEURONJAX_GOLDEN_PROGRAM"] == "bits"
    assert "NEURONJAX_UPDATE_GOLDEN" not in os.environ


@slow
def test_goldens_are_made_checked_and_updated(pytester):
    def run(*options):
        return pytester.runpytest_inprocess(*PLUGIN, *options)

    path = pytester.makepyfile(GUARDED.replace("FACTOR", "2"))
    result = run()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*make it: pytest --neuronjax-update-golden"])
    run("--neuronjax-update-golden").assert_outcomes(passed=2)
    assert {p.name for p in (pytester.path / "golden").iterdir()} == {
        f"double.{target}.{ending}"
        for target in ("trn2", "trn3")
        for ending in ("json", "mlirbc", "npz")
    }
    run().assert_outcomes(passed=2)
    path.write_text(path.read_text().replace("* 2", "* 3"))
    run("--neuronjax-golden-program", "warn").assert_outcomes(passed=2, warnings=2)
    (pytester.path / "golden" / "old.trn2.json").write_text("{}")
    run().stdout.fnmatch_lines(["no test uses the golden */golden/old.trn2"])
    (pytester.path / "golden" / "old.trn2.json").unlink()
    result = run()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*result[[]1]: 3 (0x40400000), expected 2 (0x4000*"])
    result = run("--neuronjax-update-golden", "-k", "trn2")
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "goldens: 1 written, 0 not",
            "  golden double.trn2: written to *1 results cha*",
        ]
    )
    run("--neuronjax-golden-program", "fail").assert_outcomes(failed=1, passed=1)


TWICE = {
    "another function": """
        def test_one(golden):
            golden(NAME, lambda x: x * 2)(X)

        def test_other(golden):
            golden(NAME, lambda x: x * 3)(X)
    """,
    "the same bits": """
        def test_one(golden):
            golden(NAME, lambda x: x * 2)(X)

        def test_other(golden):
            golden(NAME, lambda x: x + x)(X)
    """,
    "without the fixture": """
        from neuronjax.testing import golden

        def test_one(tmp_path_factory):
            golden(NAME, lambda x: x * 2, directory="kept")(X)

        def test_other():
            golden(NAME, lambda x: x * 3, directory="../" + CWD + "/kept")(X)
    """,
    "another value": """
        @pytest.mark.parametrize("scale", [2, 3])
        def test_both(golden, scale):
            golden(NAME, lambda x: x * scale)(X)
    """,
    "a loop, and partials": """
        def scaled(scale, x):
            return x * scale

        def test_one(golden):
            golden(NAME, functools.partial(scaled, 2))(X)

        def test_other(golden):
            golden(NAME, functools.partial(scaled, 3))(X)
    """,
    "other arguments": """
        @pytest.mark.parametrize("shift", [0, 1])
        def test_both(golden, shift):
            golden(NAME, lambda x: x * 2)(X + np.float32(shift))
    """,
    "policies without names": """
        POLICIES = (nj.Policy(psum_dtype="bfloat16"), nj.Policy(rounding="rne"))

        @pytest.mark.neuron_policy(*POLICIES)
        def test_both(golden):
            golden(NAME, lambda x: x * 2)(X)
    """,
    "a label as a name": """
        @pytest.mark.neuron_target("trn2")
        def test_one(golden):
            golden(NAME, lambda x: x * 2)(X)

        def test_other(golden):
            golden(NAME + ".trn2", lambda x: x * 3)(X)
    """,
}
HEAD = """
        import functools
        import os
        import numpy as np
        import pytest
        import neuronjax as nj

        X = np.arange(3, dtype=np.float32)
        CWD = os.path.basename(os.getcwd())
        NAME = "{name}"
"""
ONCE = """
        from neuronjax.testing import golden as compared

        def double(x):
            return x * 2

        @pytest.mark.parametrize("turn", range(2))
        def test_one(golden, turn):
            golden("once", double)(X)
            golden("once", double)(X)

        def test_other(golden):
            golden("once", double)(X)
            golden("other", double)(X)

        def test_last(request):
            folder = request.path.parent / "golden"
            as_it_is = {"directory": folder, "update": False}
            compared("once", lambda x: x * 2, **as_it_is)(X)
            with pytest.raises(AssertionError, match="other bits"):
                compared("once", lambda x: x * 3, **as_it_is)(X)
"""


@pytest.mark.slow
def test_a_name_that_is_used_twice_is_an_error(pytester, monkeypatch):
    """And not that of one function in two tests, nor that of one in two sessions."""
    monkeypatch.setenv("PYTHONPATH", str(Path(neuronjax_pytest.__file__).parent))
    names = {name.replace(" ", "_"): text for name, text in TWICE.items()}
    files = {
        f"test_{name}": HEAD.replace("{name}", name) + text
        for name, text in names.items()
    }
    pytester.makepyfile(**files, test_once=HEAD + ONCE)
    for options in (["--neuronjax-update-golden"], []):
        result = pytester.runpytest_subprocess(*PLUGIN, *options)
        result.assert_outcomes(passed=len(names) + 4, failed=len(names))
        for name in names:
            result.stdout.fnmatch_lines_random([f"*golden {name}* is used twice, by *"])
    pytester.makepyfile(test_once=HEAD + ONCE.replace("double", "twice"))
    again = pytester.runpytest_subprocess(*PLUGIN, "test_once.py")
    again.assert_outcomes(passed=4)


@slow
def test_under_xdist(pytester, monkeypatch):
    """Workers that write the same golden at the same time, and then check it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(neuronjax_pytest.__file__).parent))
    pytester.makepyfile("""
        import numpy as np
        import pytest

        @pytest.mark.parametrize("worker", range(4))
        @pytest.mark.neuron_target("trn2", "trn3")
        def test_double(golden, worker):
            golden("double", lambda x: x * 2)(np.arange(3, dtype=np.float32))
    """)
    run = functools.partial(pytester.runpytest_subprocess, *PLUGIN, "-n", "2")
    run("--neuronjax-update-golden").assert_outcomes(passed=8)
    left = sorted(p.name for p in (pytester.path / "golden").iterdir())
    assert len(left) == 6
    # What the processes used is known where they end.
    (pytester.path / "golden" / "old.json").write_text("{}")
    result = run("--neuronjax-golden-report", "page.md")
    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines(["no test uses the golden */golden/old"])
    result.stdout.no_fnmatch_line("*golden */golden/double*")
    page = (pytester.path / "page.md").read_text()
    assert page == "## Goldens: 2 unchanged\n\n"


@slow
def test_a_tolerance_of_the_test_and_a_page(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(neuronjax_pytest.__file__).parent))
    pytester.makepyfile(
        """
        import numpy as np
        import pytest

        def double(x):
            return x @ x * FACTOR

        X = np.arange(4, dtype=np.float32).reshape(2, 2)

        @pytest.mark.neuron_policy("bf16")
        def test_near(neuron_tolerance, neuron_jit):
            bounds = neuron_tolerance(double)(X)
            assert bounds.policy == "bf16"
            assert bounds.check(neuron_jit(double)(X))
            assert "power" in str(bounds)

        def test_golden(golden):
            golden("double", double)(X)
    """.replace("FACTOR", "2")
    )
    [path] = pytester.path.glob("test_*.py")
    run = functools.partial(pytester.runpytest_subprocess, *PLUGIN)
    run("--neuronjax-update-golden").assert_outcomes(passed=2)
    path.write_text(path.read_text().replace("* 2", "* 3"))
    pages = ("page.md", "page.html")
    run(*(f"--neuronjax-golden-report={page}" for page in pages))
    for page in pages:
        text = (pytester.path / page).read_text()
        assert "failed: program" in text
        assert path.name in text
    run("--neuronjax-update-golden", f"--neuronjax-golden-report={pages[0]}")
    assert "Goldens: 1 written" in (pytester.path / pages[0]).read_text()


@slow
def test_compiled_programs_are_kept_where_asked(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(neuronjax_pytest.__file__).parent))
    pytester.makeini("[pytest]\nneuronjax_cache = kept")
    pytester.makepyfile("""
        import jax

        def test_kept():
            assert "kept" in str(jax.config.jax_compilation_cache_dir)
    """)
    result = pytester.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["compiled programs: */kept/xla-*"])
