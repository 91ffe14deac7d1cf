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
LEGAL, SESSION = "NEURONJAX_GOLDEN_TOLERANCE", "NEURONJAX_GOLDEN_SESSION"
_CHOICES = ("warn", "bits", "fail", "edits")
_VARIED = {"neuron_target": "trn2", "neuron_policy": None}
_MARKERS = (
    "neuron_target(*names): run the test once for each target, 'trn2', 'trn3', ...",
    "neuron_policy(*policies): run the test once for each policy, 'bf16', 'fp8', ...",
)


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
        "neuronjax_golden_tolerance",
        "legal: other bits that are a warning are held against neuronjax.tolerance",
        default="none",
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
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setenv(CHANGED, changed)
    patch.setenv(LEGAL, config.getini("neuronjax_golden_tolerance"))
    patch.setenv(SESSION, str(time.monotonic_ns()))
    if config.getoption("neuronjax_update_golden"):
        patch.setenv(UPDATE, "1")
    patch.setattr(pytest, "approx", _of_jax_arrays(pytest.approx))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say which goldens were written, and after a whole run which no test uses."""
    module = sys.modules.get("neuronjax.testing.golden")
    used = module.used.get(os.environ[SESSION], {}) if module else {}
    written = [report for report in used.values() if report and report.written]
    if written:
        others = len(used) - len(written)
        terminalreporter.write_line(f"goldens: {len(written)} written, {others} not")
    for report in written:
        terminalreporter.write_line(f"  {report}")
    is_named = config.args_source is pytest.Config.ArgsSource.ARGS
    if is_named or "deselected" in terminalreporter.stats:
        return
    for folder in sorted({path.parent for path in used}):
        held = {path.with_suffix("") for path in folder.glob("*.json")}
        for path in sorted(held - used.keys()):
            terminalreporter.write_line(f"no test uses the golden {path}", yellow=True)


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
