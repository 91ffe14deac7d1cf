"""Reads what a user names on the command line: a saved program, or a function in a
file.

`package.module:function` and `path/to/file.py:function` are functions; any other text
is the path of a saved program. Arguments of a function come from `--args` (shapes),
`--inputs` (an .npz file) or the function's attribute `example_args`. If only a shape is
known, values are drawn from a seeded generator: normal floats, integers from 0 to 7.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import typer

from neuronjax.api.load import load
from neuronjax.capture.artifacts import is_symbolic, read_artifact
from neuronjax.capture.trace import as_declared, is_key
from neuronjax.errors import InvalidProgramError, is_library
from neuronjax.execution import stages
from neuronjax.ir.array_file import read_npz
from neuronjax.numerics.float_format import FORMATS
from neuronjax.testing.bits import path_text
from neuronjax.testing.golden_file import read
from neuronjax.testing.golden_run import stored_inputs

SourceArgument = Annotated[
    str,
    typer.Argument(
        help="A saved program, or `module:function` or `file.py:function`.",
        show_default=False,
    ),
]
ShapesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--args",
        metavar="SHAPES",
        help="The arguments of a function: 'f32[8,16] i32[4]'. Repeatable. "
        "Default: the function's attribute example_args.",
    ),
]
InputsOption = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        help="An .npz file of the arguments, by name or as arr_0, arr_1, ...",
    ),
]
#: The text of --args, or one text for each --args; None without the option.
Shapes = str | Sequence[str] | None
SeedOption = Annotated[int, typer.Option(help="The seed of random inputs.")]


#: Positional arguments and keywords.
Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class SavedSource:
    """A saved program; the file has the types of the arguments."""

    name: str

    @property
    def function(self) -> Path:
        """Return the path, which verbs accept in place of a function."""
        return Path(self.name)

    def arguments(self, shapes: Shapes) -> tuple[Any, ...]:
        """Return no arguments, since the file has their types."""
        return ()

    def values(self, shapes: Shapes, inputs: Path | None, seed: int) -> Call:
        """Return the arguments as arrays, from a file or drawn at random."""
        artifact = read_artifact(self.name)
        types, names = artifact.in_avals, artifact.argument_names
        words = [
            jax.eval_shape(jax.random.key_data, type) if is_key(type.dtype) else type
            for type in types
        ]
        arrays = with_values(words, names, inputs, seed)
        leaves = [as_declared(*pair) for pair in zip(arrays, types, strict=True)]
        if artifact.in_tree is None:
            return tuple(leaves), {}
        return jax.tree.unflatten(artifact.in_tree, leaves)


@dataclass(frozen=True)
class FunctionSource:
    """A Python function, and the name that the user has given for it."""

    name: str
    function: Callable[..., Any]

    def arguments(self, shapes: Shapes) -> tuple[Any, ...]:
        """Return the types in `shapes`, or without it what `example_args` has."""
        if shapes is not None and shapes != []:
            return self._fitting(parse_shapes(shapes))
        example = getattr(self.function, "example_args", None)
        if example is None:
            raise InvalidProgramError(
                f"{self.name}: the arguments are not known",
                remedy="give --args 'f32[8,16] i32[4]', or set "
                f"{self.name.rpartition(':')[2]}.example_args = (...) in the file",
            )
        stages.stage("making the arguments")
        arguments: Any = example() if callable(example) else example
        return self._fitting(tuple(arguments))

    def values(self, shapes: Shapes, inputs: Path | None, seed: int) -> Call:
        """Return arrays from a file, from `example_args`, or drawn at random."""
        leaves, tree = jax.tree.flatten_with_path(self.arguments(shapes))
        names = [path_text(path) for path, _ in leaves]
        types = [
            x if isinstance(x, jax.ShapeDtypeStruct) else jnp.asarray(x)
            for _, x in leaves
        ]
        return jax.tree.unflatten(tree, with_values(types, names, inputs, seed)), {}

    def _fitting(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):  # the parameters are not known
            return arguments
        try:
            signature.bind(*arguments)
        except TypeError as error:
            short = self.name.rpartition(":")[2]
            raise InvalidProgramError(
                f"{self.name}{signature}: {error}; {len(arguments)} are given",
                remedy="give one shape per argument; if an argument is a pytree "
                f"(parameters, optimizer state), set {short}.example_args in the file "
                "to a tuple of arguments, or to a function that returns the tuple",
            ) from error
        return arguments


def find(source: str) -> FunctionSource | SavedSource:
    """Return the function or saved program that a user names."""
    where, colon, name = source.rpartition(":")
    if not colon or not name.isidentifier() or Path(source).exists():
        return _saved(source)
    module = _from_file(where) if where.endswith(".py") else _from_module(where)
    function = getattr(module, name, None)
    if not callable(function):
        names = _functions(module)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InvalidProgramError(
            f"{source}: {where} has no function {name}",
            remedy=f"{hint}its functions: {', '.join(names) or 'none'}",
        )
    return FunctionSource(source, function)


def program(source: str, shapes: Shapes) -> tuple[Any, tuple[Any, ...]]:
    """Return the named function, or a saved program's path, and its arguments."""
    named_source = find(source)
    return named_source.function, named_source.arguments(shapes)


def _saved(source: str) -> FunctionSource | SavedSource:
    path = Path(source)
    if not path.is_file():
        raise InvalidProgramError(
            f"{source}: no such file",
            remedy="give a saved program (StableHLO, jax.export, HLO) or a function, "
            "`package.module:function` or `path/to/file.py:function`",
        )
    if path.suffix == ".py":
        raise InvalidProgramError(
            f"{source} is a Python file, and no function is named",
            remedy=f"write {source}:FUNCTION; its functions: "
            f"{', '.join(_functions(_from_file(source))) or 'none'}",
        )
    if is_symbolic(path):
        return FunctionSource(source, load(path))
    return SavedSource(source)


def _functions(module: ModuleType) -> list[str]:
    """Return the names of public functions that are defined in files of the user."""
    return [
        name
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and not isinstance(value, type)
        and _is_own(getattr(value, "__module__", None))
    ]


def _is_own(module: str | None) -> bool:
    """Return whether the user wrote a module; Python's and libraries' do not count."""
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if file is None or is_library(file):
        return False
    return not file.startswith(sysconfig.get_path("stdlib"))


def _from_file(path: str) -> ModuleType:
    file = Path(path)
    if not file.is_file():
        raise InvalidProgramError(f"{path}: no such file", remedy="check the path")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    # With `python file.py`, modules beside the file can be imported.
    sys.path.insert(0, str(file.resolve().parent))
    with stages.watching(file.name, "loading"):
        spec.loader.exec_module(module)
    return module


def _from_module(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())  # as with `python -m`
    try:
        with stages.watching(name, "loading"):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and not name.startswith(error.name):
            raise
        raise InvalidProgramError(
            f"there is no module {name}",
            remedy="start the command in the folder of the module, or give the path of "
            "the file, path/to/file.py:function",
        ) from error


_SHORT = {
    "f64": "float64",  # a later check refuses it by this name
    **{f.mlir_name.lower(): f.name for f in FORMATS.values() if f.has_dtype},
    "c64": "complex64",
    "pred": "bool",
    **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"s{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)},
}
_SHAPE = re.compile(r"\s*([a-z]\w*)(?:\[([\d\s,]*)\])?\s*,?")


def parse_shapes(texts: str | Sequence[str]) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return the types of "f32[8,16] i32[4]", or of several such texts."""
    text = texts if isinstance(texts, str) else " ".join(texts)
    types, at = [], 0
    while at < len(text.rstrip()):
        match = _SHAPE.match(text, at)
        if match is None:
            raise InvalidProgramError(
                f"cannot read {text[at:]!r} in --args",
                remedy="write dtypes and shapes, such as 'f32[8,16] i32[4] f32'",
            )
        shape = tuple(int(size) for size in re.findall(r"\d+", match[2] or ""))
        types.append(jax.ShapeDtypeStruct(shape, _dtype(match[1])))
        at = match.end()
    return tuple(types)


def _dtype(name: str) -> np.dtype:
    full = _SHORT.get(name, name)
    if full in ("float64", "complex128"):
        raise InvalidProgramError(
            f"dtype {name!r} in --args: no NeuronCore has it",
            remedy="use f32, or a narrower type",
        )
    try:
        return np.dtype(getattr(ml_dtypes, full, full))
    except TypeError as error:
        raise InvalidProgramError(
            f"unknown dtype {name!r} in --args",
            remedy=f"use one of: {', '.join(_SHORT)}, or a full name such as float32",
        ) from error


def with_values(
    types: Sequence[Any], names: Sequence[str], inputs: Path | None, seed: int
) -> list[jax.Array]:
    """Return the arrays of the file `inputs`. Without a file, return the arrays in
    `types`, and a random array for each type in `types`."""
    generator = np.random.default_rng(seed)
    if inputs is None:
        kind = jax.ShapeDtypeStruct
        drawn = (draw(x, generator) if isinstance(x, kind) else x for x in types)
        return [*map(jnp.asarray, drawn)]
    given = read_npz(inputs, "give an .npz file, as np.savez writes it")
    if "output/0" in given:  # the arrays of a golden file
        kept = stored_inputs(read(inputs.with_suffix("")))
        given = {f"arr_{n}": array for n, array in enumerate(kept)}
    numbered = enumerate(zip(types, names, strict=True))
    return [_given(given, *of, index) for index, of in numbered]


def _given(
    given: Mapping[str, np.ndarray], type: Any, name: str, index: int
) -> jax.Array:
    array = given.get(name, given.get(f"arr_{index}"))
    if array is None:
        raise InvalidProgramError(
            f"the file of --inputs has neither {name!r} nor 'arr_{index}'",
            remedy=f"rename one of its arrays: {', '.join(given)}",
        )
    if array.shape != type.shape:
        raise InvalidProgramError(
            f"argument {name} has shape {array.shape} in --inputs, but the program "
            f"takes {tuple(type.shape)}",
            remedy="give an array of that shape",
        )
    return jnp.asarray(array.astype(type.dtype))


def draw(type: jax.ShapeDtypeStruct, generator: np.random.Generator) -> np.ndarray:
    """Return a random array of a type: normal floats, integers from 0 to 7, or fair
    booleans."""
    dtype = np.dtype(type.dtype)
    if dtype.kind in "biu" or dtype.name in ("int4", "uint4"):
        end = 2 if dtype == np.bool_ else 8
        return generator.integers(0, end, type.shape).astype(dtype)
    return np.asarray(generator.standard_normal(type.shape, np.float32)).astype(dtype)
