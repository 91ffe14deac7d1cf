"""The pytest plugin of neuronjax: goldens, and tests per target and policy.

    @pytest.mark.neuron_target("trn2", "trn3")
    @pytest.mark.neuron_policy("bf16", "fp8")
    def test_step(golden):
        golden("step", train_step)(params, batch)

This module is outside the package because pytest imports plugins first: importing
`neuronjax` imports JAX, which reads environment variables that a conftest.py may still
want to set. Only pytest is imported until a fixture is used.
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
    from neuronjax.diagnostics.legal.results import LegalResults
    from neuronjax.policy import Policy
    from neuronjax.testing import GoldenReport

# Copies of names in `neuronjax.testing.golden`, which would import JAX.
UPDATE, CHANGED = "NEURONJAX_UPDATE_GOLDEN", "NEURONJAX_GOLDEN_PROGRAM"
LEGAL, SESSION = "NEURONJAX_GOLDEN_TOLERANCE", "NEURONJAX_GOLDEN_SESSION"
_CHOICES = ("warn", "bits", "fail", "edits")
#: The results of goldens in the processes of pytest-xdist, by path.
_OF_WORKERS = pytest.StashKey[dict[str, dict[str, Any]]]()
_IS_PART = pytest.StashKey[bool]()  # whether tests were deselected
_CACHE = pytest.StashKey[list[Path]]()
_VARIED = {"neuron_target": "trn2", "neuron_policy": None}
_MARKERS = (
    "neuron_target(*names): run the test once for each target, 'trn2', 'trn3', ...",
    "neuron_policy(*policies): run the test once for each policy, 'bf16', 'fp8', ...",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the command line and of the configuration file."""
    group = parser.getgroup("neuronjax", "numerics of emulated Trainium programs")
    group.addoption(
        "--neuronjax-update-golden",
        action="store_true",
        help="write the goldens that the selected tests check, where they changed",
    )
    group.addoption(
        "--neuronjax-golden-program",
        choices=_CHOICES,
        help="if a program differs from its golden's: warn; bits: fail if the bits "
        "differ; fail; edits (the default): fail if an edit changed the bits",
    )
    group.addoption(
        "--neuronjax-golden-report",
        action="append",
        default=[],
        metavar="FILE",
        help="write the goldens' results for reviewers, .md or .html; may be repeated",
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
        "neuronjax_golden_program", "as --neuronjax-golden-program", default="edits"
    )
    parser.addini(
        "neuronjax_golden_tolerance",
        "legal: changed bits that would be a warning fail outside neuronjax.tolerance",
        default="none",
    )
    parser.addini(
        "neuronjax_cache", "a folder in the root for compiled programs", default=""
    )
    parser.addini(
        "neuronjax_golden_directory",
        "where goldens are, relative to the test's file",
        default="golden",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, and pass the options to `testing.golden` and to xdist."""
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
    config.stash[_OF_WORKERS], config.stash[_IS_PART] = {}, False
    config.stash[_CACHE] = []
    if folder := config.getini("neuronjax_cache"):
        import neuronjax

        config.stash[_CACHE].append(neuronjax.keep_compiled(config.rootpath / folder))
    patch.setattr(pytest, "approx", _of_jax_arrays(pytest.approx))


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return a line with the folder of compiled programs, named by the cache's key."""
    return [f"compiled programs: {path}" for path in config.stash[_CACHE]]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the goldens that were written and, after a whole run, unused ones."""
    used = {**_used(), **config.stash[_OF_WORKERS]}
    told = [row["told"] for row in used.values() if row.get("state") == "written"]
    if told:
        others = len(used) - len(told)
        told.insert(0, f"goldens: {len(told)} written, {others} not")
        terminalreporter.write_line("\n  ".join(told))
    pages = (config.getoption("neuronjax_golden_report") or []) if used else []
    for path in map(Path, pages):
        from neuronjax.testing.golden_page import page

        rows = [*filter(None, used.values())]
        path.write_text(page(rows, is_html=path.suffix == ".html"))
        terminalreporter.write_line(f"goldens: {path}")
    if config.args_source is pytest.Config.ArgsSource.ARGS or config.stash[_IS_PART]:
        return
    for folder in sorted({Path(path).parent for path in used}):
        texts = {
            file.with_suffix(""): file.read_text() for file in folder.glob("*.json")
        }
        unused = [path for path in texts if str(path) not in used]
        inputs = folder.glob("inputs/*")
        unused += [i for i in inputs if not any(i.name in t for t in texts.values())]
        for path in sorted(unused):
            terminalreporter.write_line(f"no test uses the golden {path}", yellow=True)


def _used() -> dict[str, dict[str, Any]]:
    """Return the results of the goldens that this process has used, by path."""
    module = sys.modules.get("neuronjax.testing.golden")
    return module.used.get(os.environ[SESSION], {}) if module else {}


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Record that tests are deselected, so that unused goldens are not listed."""
    if items:
        items[0].config.stash[_IS_PART] = True


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the results of goldens from a process of pytest-xdist."""
    config = session.config
    output = getattr(config, "workeroutput", {})
    output["neuronjax"] = _used(), config.stash[_IS_PART]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Receive the results of goldens from a process of pytest-xdist."""
    used, is_part = getattr(node, "workeroutput", {}).get("neuronjax", ({}, True))
    stash = node.config.stash
    stash[_OF_WORKERS] |= used
    stash[_IS_PART] |= is_part


def _of_jax_arrays(approx: Any) -> Any:
    """Return `pytest.approx` with support for JAX arrays with a tolerance.

    pytest 9.2 raises NotImplementedError because it searches `expected.flat` of JAX
    arrays for decimals. Converted to NumPy arrays, they are handled as before."""

    @functools.wraps(approx)
    def approximately(expected: Any, *args: Any, **kwargs: Any) -> Any:
        jax = sys.modules.get("jax")
        if jax is not None and isinstance(expected, jax.Array):
            expected = sys.modules["numpy"].asarray(expected)
        return approx(expected, *args, **kwargs)

    return approximately


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests by targets and policies of the markers, or of the options."""
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
    """Return a target's or policy's part of a test's name; None leaves it to pytest."""
    if value is None:
        return "sdk"
    return value if isinstance(value, str) else getattr(value, "name", None)


@pytest.fixture
def neuron_target(request: pytest.FixtureRequest) -> str:
    """Return the target's name from the marker, or from `--neuronjax-target`."""
    return request.param


@pytest.fixture
def neuron_policy(request: pytest.FixtureRequest) -> str | Policy | None:
    """Return the policy from the marker, or from `--neuronjax-policy`."""
    return request.param


@pytest.fixture
def neuron_jit(
    neuron_target: str, neuron_policy: str | Policy | None
) -> Callable[..., Emulated]:
    """Return `neuronjax.jit` for the test's target and policy."""
    import neuronjax

    return _under(neuronjax.jit, target=neuron_target, policy=neuron_policy)


@pytest.fixture
def neuron_tolerance(
    neuron_target: str, neuron_policy: str | Policy | None
) -> Callable[..., Callable[..., LegalResults]]:
    """Return `neuronjax.tolerance` for the test's target and policy."""
    import neuronjax

    return _under(neuronjax.tolerance, target=neuron_target, policy=neuron_policy)


def _under(verb: Callable[..., Any], **setting: Any) -> Callable[..., Any]:
    return lambda function, **options: verb(function, **{**setting, **options})


@pytest.fixture
def golden(
    request: pytest.FixtureRequest,
) -> Callable[..., Callable[..., GoldenReport]]:
    """Return a `neuronjax.testing.golden` that stores its files beside the test's file.

    If a test runs for several targets or policies, each is the default in its run and
    part of the golden's name."""
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
    """Return value and label of the test's target and policy, if it has several."""
    # `callspec` also has parameters that the test itself does not request.
    call = getattr(request.node, "callspec", None)
    given = {} if call is None else call.params
    return {
        name.removeprefix("neuron_"): (given[name], _label(given[name]) or "policy")
        for name in _VARIED
        if name in given
    }
