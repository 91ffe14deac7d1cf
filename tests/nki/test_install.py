"""`import nki` in scripts that were not written for neuronjax."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

NEW = """
    import sys
    import nki, nki.language as nl, nki.isa as nisa, nki.typing as nt
    import neuronjax.nki.language
    from nki.isa.constants import dge_mode
    import numpy as np

    @nki.jit
    def double(x: nt.tensor[4, 8]):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        nisa.dma_copy(out, nl.add(tile, tile), dge_mode=dge_mode.none)
        return out

    x = np.ones((4, 8), np.float32)
    assert (double(x) == 2).all() and (nki.simulate(double)(x) == 2).all()
    assert nl is neuronjax.nki.language and nki is neuronjax.nki
    nki.install()
    print(__name__, sys.argv[1:])
    try:
        import nki.tensor
    except ModuleNotFoundError as error:
        print("absent:", error.name)
"""
OLD = """
    import neuronxcc.nki as nki
    import neuronxcc.nki.language as nl
    import numpy as np

    def add(a, b):
        i_p, i_f = nl.mgrid[0:4, 0:8]
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(out[i_p, i_f], nl.load(a[i_p, i_f]) + nl.load(b[i_p, i_f]))
        return out

    x = np.ones((4, 8), np.float32)
    print(nki.simulate_kernel(add, x, x).sum())
"""


def run(tmp_path, text, *arguments):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    command = [sys.executable, "-m", "neuronjax.nki", *(arguments or [str(script)])]
    here = str(Path(__file__).parents[2] / "src")
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": here}
    return subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True
    )


@pytest.mark.slow
def test_a_script_runs_as_it_is(tmp_path):
    done = run(tmp_path, NEW, str(tmp_path / "script.py"), "--flag", "7")
    assert done.stdout == "__main__ ['--flag', '7']\nabsent: nki.tensor\n", done.stderr


@pytest.mark.slow
def test_the_older_names_have_the_older_style(tmp_path):
    done = run(tmp_path, OLD)
    assert done.stdout == "64.0\n", done.stderr


@pytest.mark.slow_cases("neuronxcc")
@pytest.mark.parametrize("package", ["nki", "neuronxcc"])
def test_the_vendors_package_is_not_replaced(tmp_path, package):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    done = run(tmp_path, OLD, "-m", "script")
    assert done.returncode == 2, done
    assert f"the package {package} is installed here" in done.stderr
    assert "remedy" in done.stderr


@pytest.mark.slow
def test_usage_and_missing_scripts(tmp_path):
    assert "usage" in run(tmp_path, "", "--help").stdout
    done = run(tmp_path, "", "none.py")
    assert done.returncode == 2
    assert "no such file" in done.stderr
