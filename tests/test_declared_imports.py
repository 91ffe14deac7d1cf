"""Every package that the tests import is declared by name in pyproject.toml.

A package that another one happens to bring is there on one day and gone on the next.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Programs of these folders run in an environment of their own, which they describe.
APART = ("strangers",)


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    """Return the distributions that `pip install -e '.[test,dev]'` is asked for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["test"], *extras["dev"]]
    return {normalized(re.split(r"[\[<>=!~; ]", name)[0]) for name in asked}


def imported(path: Path) -> set[str]:
    """Return the packages that a module imports as it is loaded."""
    nodes = ast.parse(path.read_text()).body
    plain = [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    names = plain + [
        node.module
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
    ]
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names


@pytest.mark.parametrize("folder", ["tests", "benchmarks/tests"])
def test_packages_that_tests_import_are_declared(folder):
    known, brought_by = declared(), packages_distributions()
    for path in sorted((ROOT / folder).rglob("*.py")):
        if any(part in APART for part in path.relative_to(ROOT).parts):
            continue
        for package in imported(path):
            distributions = {normalized(d) for d in brought_by.get(package, ())}
            assert not distributions or distributions & known, (
                f"{path.relative_to(ROOT)} imports {package}, which pyproject.toml "
                "does not declare for tests"
            )
