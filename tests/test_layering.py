"""Imports inside neuronjax point downward only, and MLIR stays in `capture`.

Every import counts, also those inside functions and under TYPE_CHECKING: a lazy import
is still a dependency. Rooms import downward, and no files import one another. Nothing
is executed; the files are parsed.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "neuronjax"

BASE = frozenset({"errors", "numerics", "hardware", "policy"})
PROGRAMS = BASE | {"ir"}
# Instructions become arrays in one room and seconds in another.
RUNNING = PROGRAMS | {"capture", "lowering", "execution", "nki"}
BELOW_API = RUNNING | {"timing", "report", "diagnostics"}

# What each room, and each file beside the rooms, may import beside itself.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "numerics": frozenset({"errors"}),
    "hardware": frozenset({"errors"}),
    "policy": frozenset({"errors"}),
    "ir": BASE,
    "capture": PROGRAMS,
    "lowering": PROGRAMS,
    "timing": PROGRAMS,
    # vmap and grad of an emulated function capture and lower the function's derivative.
    "execution": PROGRAMS | {"capture", "lowering"},
    "nki": PROGRAMS | {"capture", "execution"},
    "report": RUNNING | {"timing"},
    "diagnostics": RUNNING | {"timing", "report"},
    "api": BELOW_API,
    # A golden is a run of the public verbs.
    "testing": BELOW_API | {"api"},
    "__init__": BELOW_API | {"api"},
    "cli": BELOW_API | {"api", "testing", "__init__"},
    "__main__": frozenset({"cli"}),
}

MLIR = ("jax.extend.mlir", "jax.interpreters.mlir", "jaxlib.mlir", "jax._src")
# Files, relative to the package, that have a reason to use jax._src.
PRIVATE_JAX: frozenset[str] = frozenset()

FILES = sorted(PACKAGE.rglob("*.py"))


def top_level(path: Path) -> str:
    """The module or subpackage directly under neuronjax that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def imports(path: Path, source: str) -> tuple[tuple[int, str], ...]:
    """Line and absolute dotted name of everything that a file imports."""
    package = ("neuronjax", *path.relative_to(PACKAGE).parent.parts)
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source, filename=str(path))):
        if isinstance(node, ast.Import):
            found += ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            prefix = ".".join((*parents, *filter(None, [node.module])))
            found += ((node.lineno, f"{prefix}.{a.name}") for a in node.names)
    return tuple(found)


def within(name: str, module: str) -> bool:
    """Whether a dotted name is a module or something inside it."""
    return name == module or name.startswith(f"{module}.")


def imported_module(name: str) -> str:
    """The top-level module of a name under neuronjax; a public name is `__init__`'s."""
    second = [*name.split("."), "__init__"][1]
    return second if second in MAY_IMPORT else "__init__"


def violations(path: Path, source: str) -> list[str]:
    """What a file imports and must not, as "line: name"."""
    here = top_level(path)
    allowed = MAY_IMPORT[here] | {here}
    found = []
    for line, name in imports(path, source):
        upward = within(name, "neuronjax") and imported_module(name) not in allowed
        mlir = here != "capture" and any(within(name, module) for module in MLIR)
        relative = path.relative_to(PACKAGE).as_posix()
        private = within(name, "jax._src") and relative not in PRIVATE_JAX
        if upward or mlir or private:
            found.append(f"{line}: {name}")
    return found


def test_imports_point_downward():
    rooms = {top_level(path) for path in FILES}
    assert rooms <= set(MAY_IMPORT), f"add {rooms - set(MAY_IMPORT)} to MAY_IMPORT"
    found = {path: violations(path, path.read_text()) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}


def test_the_table_has_no_cycle():
    """A room is never allowed to import one that may import it."""
    for module, allowed in MAY_IMPORT.items():
        for other in allowed:
            assert module not in MAY_IMPORT[other], f"{module} <-> {other}"


def module_name(path: Path) -> str:
    """The dotted name of a file; that of a folder for its `__init__`."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def imported_files(path: Path, source: str) -> set[str]:
    """The files of the package that a file imports, by name."""
    found = set()
    for _, name in imports(path, source):
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        found.add(name)
    return found - {"", module_name(path)}


def circle(sources: dict[str, str]) -> list[str]:
    """Files that import one another, in order; nothing if there are none."""
    graph = {n: imported_files(MODULES[n], source) for n, source in sources.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_no_files_import_one_another():
    assert circle({name: path.read_text() for name, path in MODULES.items()}) == []


def test_a_circle_is_found():
    lazy = "def f():\n    from neuronjax.ir import text"
    typed = "if TYPE_CHECKING:\n    from neuronjax.ir.program import Program"
    found = circle({"neuronjax.ir.program": lazy, "neuronjax.ir.text": typed})
    assert set(found) == {"neuronjax.ir.program", "neuronjax.ir.text"}


def test_a_class_name_has_one_meaning():
    """Leading underscores aside, no two files define a class of one name."""
    places: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for found in re.findall(r"^class _*(\w+)", path.read_text(), re.MULTILINE):
            places.setdefault(found, []).append(name)
    assert {k: v for k, v in places.items() if len(v) > 1} == {}


def test_values_and_cycles_stay_apart():
    assert "execution" not in MAY_IMPORT["timing"]
    assert "timing" not in MAY_IMPORT["execution"]


def test_the_package_is_rooms_and_three_files():
    found = {p.name for p in PACKAGE.iterdir() if p.name != "__pycache__"}
    files = {"__init__.py", "__main__.py", "errors.py"}
    assert found == files | {n for n in MAY_IMPORT if (PACKAGE / n).is_dir()}
    assert len(found) <= 17


def test_private_exceptions_exist():
    for name in PRIVATE_JAX:
        assert (PACKAGE / name).is_file()


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("timing/cost.py", "from neuronjax.execution.engines import tensor"),
        ("timing/cost.py", "from ..execution import interpreter"),
        ("execution/engines/tensor.py", "import neuronjax.timing.cost"),
        ("policy/policy.py", "from neuronjax import ir"),
        ("policy/policy.py", "from .. import ir"),
        ("ir/program.py", "import neuronjax as nj"),
        ("ir/program.py", "def f():\n    from neuronjax import jit"),
        ("lowering/movement.py", "from jax.extend.mlir import ir"),
        ("lowering/movement.py", "from jax.extend import mlir"),
        ("execution/interpreter.py", "from jaxlib.mlir import dialects"),
        ("capture/trace.py", "from jax._src import core"),
        ("api/jit.py", "from neuronjax.testing import golden"),
    ],
)
def test_an_upward_import_is_found(file, source):
    assert len(violations(PACKAGE / file, source)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("timing/cost.py", "from neuronjax.policy import Policy"),
        ("execution/engines/tensor.py", "from . import vector"),
        ("lowering/registry.py", "from ..errors import UnimplementedError"),
        ("capture/decode.py", "from jax.extend.mlir import ir"),
        ("execution/interpreter.py", "import jax, numpy"),
        ("__init__.py", "from neuronjax.api.jit import jit"),
        ("cli/tour.py", "from neuronjax import jit"),
    ],
)
def test_a_downward_import_passes(file, source):
    assert violations(PACKAGE / file, source) == []


def test_an_unknown_room_is_refused():
    with pytest.raises(KeyError):
        violations(PACKAGE / "novelty.py", "import jax")
