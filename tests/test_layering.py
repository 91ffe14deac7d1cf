"""Imports inside neuronjax point downward only, and MLIR stays in `capture`.

Every import counts, also those inside functions and under TYPE_CHECKING: a lazy import
is still a dependency. Nothing is executed; the files are parsed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "neuronjax"

BASE = frozenset({"errors", "numerics", "hardware"})
PROGRAMS = BASE | {"ir", "policy", "policy_scopes"}
MIDDLE = frozenset({"capture", "lowering", "engines", "collectives", "timing"})
LOOP = frozenset(
    {"boundaries", "carriers", "sliced_reduction", "variance", "spmd", "interpreter"}
    | {"emulation"}
    | {"collecting", "ledger", "measuring", "origins", "sites"}
)
RUNNING = PROGRAMS | MIDDLE | LOOP
TOOLS = frozenset({"report", "diagnostics", "nki"})
MODELS = frozenset({"collective_bench", "scaling"})
PUBLIC = MODELS | {"signatures", "programs", "loading", "api", "checking", "parallel"}
PUBLIC |= {"comparing", "profiling", "renting", "estimating", "serving"}
PUBLIC |= {"testing", "study", "precision_search"}
ALL = RUNNING | TOOLS | PUBLIC | {"__init__"}

# What each top-level module may import, beside itself. A new module needs a line here.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "numerics": frozenset({"errors"}),
    "hardware": frozenset({"errors"}),
    "ir": BASE,
    "policy_flags": BASE,
    "policy_checks": BASE,
    "policy": BASE | {"policy_flags", "policy_checks"},
    "policy_scopes": BASE | {"policy"},
    **dict.fromkeys(MIDDLE, PROGRAMS),
    # Which fold a reduction over devices has is part of the instruction.
    "lowering": PROGRAMS | {"collectives"},
    # What is moved in which step follows from the same choice.
    "timing": PROGRAMS | {"collectives"},
    "variance": PROGRAMS | MIDDLE,
    "carriers": PROGRAMS | MIDDLE,
    "origins": PROGRAMS,
    "collecting": PROGRAMS,
    "sites": PROGRAMS | {"collecting", "origins"},
    "measuring": PROGRAMS | {"collecting"},
    "ledger": PROGRAMS | {"measuring", "sites"},
    "sliced_reduction": PROGRAMS | MIDDLE | {"carriers"},
    "spmd": PROGRAMS | MIDDLE | {"carriers", "ledger", "sliced_reduction", "variance"},
    "interpreter": PROGRAMS
    | MIDDLE
    | {"boundaries", "carriers", "ledger", "sites", "spmd", "variance"},
    "boundaries": PROGRAMS,
    "emulation": PROGRAMS | MIDDLE | {"interpreter", "sites"},
    **dict.fromkeys(TOOLS, RUNNING),
    # The table of what kernels can use is read from their registries.
    "report": RUNNING | {"nki"},
    # Results are shown as those of a run are.
    "diagnostics": RUNNING | {"report"},
    **dict.fromkeys(MODELS, PROGRAMS | MIDDLE),
    "signatures": BASE,
    "programs": RUNNING | {"report"},
    "loading": RUNNING | {"programs"},
    "api": RUNNING | TOOLS | {"signatures", "programs"},
    "checking": RUNNING | TOOLS | {"api"},
    "testing": RUNNING | TOOLS | {"api"},
    "comparing": RUNNING | TOOLS | {"api"},
    "study": RUNNING | TOOLS | {"api", "programs"},
    "parallel": RUNNING | TOOLS | {"api"},
    "profiling": RUNNING | TOOLS | {"api", "programs"},
    "precision_search": RUNNING | TOOLS | {"api", "profiling", "programs"},
    "renting": RUNNING | TOOLS | {"api", "loading", "profiling", "programs"},
    **dict.fromkeys(
        ("estimating", "serving"), RUNNING | TOOLS | {"profiling", "renting"}
    ),
    "__init__": ALL - {"__init__"},
    "cli": ALL | {"quickstart"},
    "quickstart": ALL,
    "__main__": ALL | {"cli"},
}

MLIR = ("jax.extend.mlir", "jax.interpreters.mlir", "jaxlib.mlir", "jax._src")
# Files, relative to the package, that have a reason to use jax._src.
PRIVATE_JAX: frozenset[str] = frozenset()

FILES = sorted(PACKAGE.rglob("*.py"))


def top_level(path: Path) -> str:
    """The module or subpackage directly under neuronjax that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything that a file imports."""
    package = ("neuronjax", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(source, filename=str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            prefix = ".".join((*parents, *filter(None, [node.module])))
            yield from ((node.lineno, f"{prefix}.{a.name}") for a in node.names)


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


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_point_downward(path):
    assert top_level(path) in MAY_IMPORT, f"add {top_level(path)!r} to MAY_IMPORT"
    assert violations(path, path.read_text()) == []


def test_the_table_has_no_cycle():
    """A module is never allowed to import one that may import it."""
    for module, allowed in MAY_IMPORT.items():
        for other in allowed:
            assert module not in MAY_IMPORT[other], f"{module} <-> {other}"


def test_values_and_cycles_stay_apart():
    assert "engines" not in MAY_IMPORT["timing"]
    assert "timing" not in MAY_IMPORT["engines"]


def test_private_exceptions_exist():
    for name in PRIVATE_JAX:
        assert (PACKAGE / name).is_file()


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("timing/cost.py", "from neuronjax.engines import tensor"),
        ("timing/cost.py", "from ..engines import tensor"),
        ("engines/tensor.py", "import neuronjax.timing.cost"),
        ("policy.py", "from neuronjax import ir"),
        ("policy.py", "from . import ir"),
        ("ir/program.py", "import neuronjax as nj"),
        ("ir/program.py", "def f():\n    from neuronjax import jit"),
        ("lowering/movement.py", "from jax.extend.mlir import ir"),
        ("lowering/movement.py", "from jax.extend import mlir"),
        ("interpreter.py", "from jaxlib.mlir import dialects"),
        ("capture/trace.py", "from jax._src import core"),
    ],
)
def test_an_upward_import_is_found(file, source):
    assert len(violations(PACKAGE / file, source)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("timing/cost.py", "from neuronjax.policy import Policy"),
        ("engines/tensor.py", "from . import vector"),
        ("lowering/registry.py", "from ..errors import UnimplementedError"),
        ("capture/decode.py", "from jax.extend.mlir import ir"),
        ("interpreter.py", "import jax, numpy"),
        ("__init__.py", "from neuronjax.api import jit"),
        ("cli/tour.py", "from neuronjax import quickstart, jit"),
    ],
)
def test_a_downward_import_passes(file, source):
    assert violations(PACKAGE / file, source) == []


def test_an_unknown_module_is_refused():
    with pytest.raises(KeyError):
        violations(PACKAGE / "novelty.py", "import jax")
