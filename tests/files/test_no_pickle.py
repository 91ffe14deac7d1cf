"""Nothing is unpickled: a pickle runs what its writer wants."""

import ast
import pickle
from pathlib import Path

import numpy as np
import pytest

import neuronjax as nj
from neuronjax.diagnostics.dumps.reading import read_dump

SOURCES = sorted((Path(nj.__file__).parent.parent).glob("neuronjax*/**/*.py"))
SOURCES += sorted(Path(nj.__file__).parent.parent.glob("neuronjax_*.py"))
#: Modules that unpickle, or run what a file says.
UNPICKLING = {"pickle", "cPickle", "_pickle", "shelve", "marshal", "dill", "joblib"}
UNPICKLING |= {"cloudpickle"}
RUNNING = {"eval", "exec"}
#: Last names of the calls that are looked at; unparsing all would take seconds.
CALLS = RUNNING | {"load"}
#: Files that compile functions from the package's own tables, as `dataclasses` does.
MAKING = {"neuronjax/nki/signatures.py": {"eval"}}


def breaches(tree: ast.AST) -> set[str]:
    """What unpickles in a file; `np.load` has to say that it does not."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.split(".")[0] in UNPICKLING}
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} & UNPICKLING
        if isinstance(node, ast.Call):
            last = getattr(node.func, "attr", getattr(node.func, "id", ""))
            name = ast.unparse(node.func) if last in CALLS else ""
            says = [k for k in node.keywords if k.arg == "allow_pickle"]
            if name in ("np.load", "numpy.load") and not says:
                found.add("np.load")
            if any(ast.unparse(k.value) != "False" for k in says):
                found.add("allow_pickle")
            if name in RUNNING:
                found.add(name)
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import pickle", {"pickle"}),
        ("from pickle import loads", {"pickle"}),
        ("np.load(x)", {"np.load"}),
        ("np.load(x, allow_pickle=True)", {"allow_pickle"}),
        ("np.load(x, allow_pickle=False)", set()),
        ("eval(text)", {"eval"}),
    ],
)
def test_breaches_are_found(text, found):
    assert breaches(ast.parse(text)) == found


def test_the_package_unpickles_nothing():
    assert len(SOURCES) > 400
    found = {p: breaches(ast.parse(p.read_text())) for p in SOURCES}
    names = {f"{p}".partition("src/")[2]: what for p, what in found.items() if what}
    assert names == MAKING


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_a_trap_does_not_spring(name, tmp_path):
    path = tmp_path / name
    trap = np.empty(1, object)
    trap[0] = Trap()
    (np.save if path.suffix == ".npy" else np.savez)(path, trap)
    with pytest.raises(nj.InvalidProgramError, match="holds Python objects"):
        read_dump(path)
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(nj.InvalidProgramError):
        read_dump(path)
