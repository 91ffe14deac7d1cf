"""The pytest plugin of neuronjax: goldens, and tests per target and policy.

    @pytest.mark.neuron_target("trn2", "trn3")
    @pytest.mark.neuron_policy("bf16", "fp8")
    def test_step(golden):
        golden("step", train_step)(params, batch)

Outside the package, because pytest imports plugins before anything else: importing
`neuronjax` imports JAX, which reads environment variables that a conftest.py may yet
want to set. Nothing but pytest is imported until a fixture is used.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from neuronjax.api.jit import Emulated
    from neuronjax.policy import Policy
    from neuronjax.testing import GoldenReport

# As in `neuronjax.testing.golden`, which is not to be imported here.
UPDATE, CHANGED = "NEURONJAX_UPDATE_GOLDEN", "NEURONJAX_GOLDEN_PROGRAM"
SESSION = "NEURONJAX_GOLDEN_SESSION"
_CHOICES = ("warn", "bits", "fail", "edits")
_VARIED = {"neuron_target": "trn2", "neuron_policy": None}
_MARKERS = (
    "neuron_target(*names): run the test once for each target, 'trn2', 'trn3', ...",
    "neuron_policy(*policies): run the test once for each policy, 'bf16', 'fp8', ...",
)
_SAVED = pytest.StashKey[dict[str, str | None]]()
_APPROX = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the command line and of the configuration file."""
    group = parser.getgroup("neuronjax", "numerics of emulated Trainium programs")
    group.addoption(
        "--neuronjax-update-golden",
        action="store_true",
        help="write the goldens that the selected tests check, where they changed",
    )
    group.addoption(
        "--neuronjax-golden-program",
        choices=_CHOICES,
        help="where a function is another program than its golden: warn, fail if its "
        "bits differ, fail, or fail if an edit changed its bits (edits, the default)",
    )
    group.addoption(
        "--neuronjax-target",
        action="append",
        metavar="NAME",
        help="target of tests without a marker; may be repeated (default: trn2)",
    )
    group.addoption(
        "--neuronjax-policy",
        action="append",
        metavar="NAME",
        help="policy of tests without a marker; may be repeated (default: the SDK's)",
    )
    parser.addini(
        "neuronjax_golden_program", "of the option, or edits", default="edits"
    )
    parser.addini(
        "neuronjax_golden_directory",
        "where goldens are, relative to the test's file",
        default="golden",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declares the markers; tells `testing.golden`, in workers of xdist too."""
    for line in _MARKERS:
        config.addinivalue_line("markers", line)
    changed = config.getoption("neuronjax_golden_program")
    changed = changed or config.getini("neuronjax_golden_program")
    if changed not in _CHOICES:
        raise pytest.UsageError(
            f"neuronjax_golden_program is {changed!r}: choose of {', '.join(_CHOICES)}"
        )
    names = (UPDATE, CHANGED, SESSION)
    config.stash[_SAVED] = {name: os.environ.get(name) for name in names}
    os.environ[CHANGED] = changed
    os.environ[SESSION] = str(time.monotonic_ns())
    if config.getoption("neuronjax_update_golden"):
        os.environ[UPDATE] = "1"
    config.stash[_APPROX] = pytest.approx
    pytest.approx = _of_jax_arrays(pytest.approx)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leaves the environment, and pytest, as they were."""
    pytest.approx = config.stash.get(_APPROX, pytest.approx)
    for name, value in config.stash.get(_SAVED, {}).items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def _of_jax_arrays(approx: Any) -> Any:
    """`pytest.approx` that takes JAX arrays with a tolerance.

    pytest 9.2 looks for decimals in `expected.flat`, which JAX's arrays have, to raise
    NotImplementedError. As NumPy arrays they are what pytest takes them for anyway.
    """

    @functools.wraps(approx)
    def approximately(expected: Any, *args: Any, **kwargs: Any) -> Any:
        jax = sys.modules.get("jax")
        if jax is not None and isinstance(expected, jax.Array):
            expected = sys.modules["numpy"].asarray(expected)
        return approx(expected, *args, **kwargs)

    return approximately


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per target and policy of the markers, else of the options."""
    for name, default in _VARIED.items():
        marker = metafunc.definition.get_closest_marker(name)
        if marker is None and name not in metafunc.fixturenames:
            continue
        if marker is not None and not marker.args:
            raise pytest.UsageError(
                f"{metafunc.definition.nodeid}: the marker {name} names nothing"
            )
        if name not in metafunc.fixturenames:
            metafunc.fixturenames.append(name)
        option = name.replace("neuron_", "neuronjax_")
        chosen = metafunc.config.getoption(option) or [default]
        values = chosen if marker is None else marker.args
        metafunc.parametrize(name, values, ids=_label)


def _label(value: Any) -> str | None:
    """In the test's name: of a policy its own; None leaves it to pytest."""
    if value is None:
        return "sdk"
    return value if isinstance(value, str) else getattr(value, "name", None)


@pytest.fixture
def neuron_target(request: pytest.FixtureRequest) -> str:
    """The name of the target: of the marker, else of `--neuronjax-target`."""
    return request.param


@pytest.fixture
def neuron_policy(request: pytest.FixtureRequest) -> str | Policy | None:
    """The policy: of the marker, else of `--neuronjax-policy`."""
    return request.param


@pytest.fixture
def neuron_jit(
    neuron_target: str, neuron_policy: str | Policy | None
) -> Callable[..., Emulated]:
    """`neuronjax.jit` for the test's target and policy."""
    import neuronjax

    def jit(function: Callable[..., Any], **options: Any) -> Emulated:
        chosen = {"target": neuron_target, "policy": neuron_policy, **options}
        return neuronjax.jit(function, **chosen)

    return jit


@pytest.fixture
def golden(
    request: pytest.FixtureRequest,
) -> Callable[..., Callable[..., GoldenReport]]:
    """`neuronjax.testing.golden`, with files beside those of the test.

    Where the test is one of several targets or policies, these are the defaults and
    become part of the golden's name.
    """
    from neuronjax import testing

    folder = Path(request.path).parent / request.config.getini(
        "neuronjax_golden_directory"
    )
    varied = _varied(request)

    def make(name: str, function: Callable[..., Any], **options: Any) -> Any:
        labels = [label for field, (_, label) in varied.items() if field not in options]
        given = {field: value for field, (value, _) in varied.items()}
        chosen = {"directory": folder, **given, **options}
        return testing.golden(".".join([name, *labels]), function, **chosen)

    return make


def _varied(request: pytest.FixtureRequest) -> dict[str, tuple[Any, str]]:
    """Option of `golden` -> value and label, for what the test is parametrized by."""
    # Not in `fixturenames`, for a test that does not ask for the value itself.
    call = getattr(request.node, "callspec", None)
    given = {} if call is None else call.params
    return {
        name.removeprefix("neuron_"): (given[name], _label(given[name]) or "policy")
        for name in _VARIED
        if name in given
    }
