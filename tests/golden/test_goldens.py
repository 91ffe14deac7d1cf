"""Did a change of the emulator change a bit? Made with Python 3.11 and JAX 0.10, and
one of them with Python 3.13 and JAX 0.12: `make versions` reads both with both.

`pytest tests/golden --neuronjax-update-golden` accepts a change; say in the commit why
the bits are other ones.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import neuronjax as nj
from neuronjax.testing import ProgramChangedWarning, check_stored
from tests.golden import models

slow = pytest.mark.slow
STOCHASTIC = nj.Policy(
    auto_cast="matmult", auto_cast_type="bf16", rounding="stochastic", seed=11
)
CASES = {
    "mlp_bf16": (models.mlp_step, models.mlp_types, "trn2", "bf16"),
    "mlp_fp8": (models.mlp_step, models.mlp_types, "trn1", "fp8"),
    "mlp_fp8_jax_0_12": (models.mlp_step, models.mlp_types, "trn1", "fp8"),
    "mlp_stochastic": (models.mlp_step, models.mlp_types, "trn2", STOCHASTIC),
    "attention_mxfp4": (models.attention, models.attention_types, "trn3", "mxfp4"),
    "recurrent_fp32": (models.recurrent, models.recurrent_types, "inf2", "fp32"),
    "data_parallel": (
        models.data_parallel,
        models.data_parallel_types,
        "trn2.48xlarge",
        "bf16",
    ),
}
QUICK = {"recurrent_fp32"}


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=slow) for n in CASES]
)
def test_bits_hold(golden, name):
    function, types, target, policy = CASES[name]
    with warnings.catch_warnings():
        # What JAX of another version makes of the function may be another program.
        warnings.simplefilter("ignore", ProgramChangedWarning)
        golden(name, function, target=target, policy=policy)(*types())


def test_every_file_belongs_to_a_golden():
    folder = Path(__file__).with_name("golden")
    found = {path.name for path in folder.iterdir()}
    endings = ("json", "mlirbc", "npz")
    assert found == {f"{name}.{ending}" for name in CASES for ending in endings}


@slow
@pytest.mark.parametrize("name", CASES)
def test_stored_bits_hold_alone(name):
    """Without the function, as another project's CI can check ours."""
    check_stored(Path(__file__).with_name("golden") / name)
