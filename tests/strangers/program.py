"""What a stranger's program is, and how one is judged.

A program is built by a function of no arguments, which imports its library and returns
(function, arguments): one step, or one call. Its verdict compares `nj.jit` in FP32 with
`jax.jit`. How far two FP32 runs of one program may lie apart depends on the program: a
matrix of poor condition, or a softmax that saturates, magnifies every rounding. So the
bound is measured: `MAGNIFIED` times what native JAX's own result moves when every FP32
element of its arguments moves by a unit in its last place, and never below `FLOOR`.
Integers and booleans must be equal, unless they too move. A leaf that such a movement
changes by a tenth is rounding noise, as the gradient of a bias before a batch norm: it
counts, but has no say in how near the two are said to be.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from tests.conformance import bits

PyTree = Any
Call = tuple[Callable[..., PyTree], tuple[PyTree, ...]]

#: Relative error of a leaf in the 2-norm: a few hundred times 2^-24, for sums of up to
#: some hundred terms in another order, through a dozen layers and back.
FLOOR = 3e-5
#: A program of n roundings at random lies some sqrt(n) away from one whose arguments
#: alone are rounded: of a thousand, thirty times.
MAGNIFIED = 32
#: Relative movement of what is rounding noise.
NOISE = 0.1
_EXACT = 1e-300


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A small program over a public library.

    Attributes:
        library: its name on PyPI.
        title: what the program does, in a few words.
        build: () -> (function, arguments).
    """

    library: str
    title: str
    build: Callable[[], Call]

    @property
    def version(self) -> str | None:
        """The installed one's, or None."""
        try:
            return importlib.metadata.version(self.library)
        except importlib.metadata.PackageNotFoundError:
            return None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`word` is one of `WORDS`; `why` has the error, or the reason."""

    word: str
    why: str = ""


WORDS = {
    "agrees": "near native JAX",
    "differs": "not near native JAX, or of another structure",
    "refused": "by an error of ours that names the op, the line and the remedy",
    "crashed": "with an error that is not ours",
    "broken": "does not run under jax.jit either",
    "not installed": "",
}
FAILURES = frozenset({"differs", "crashed", "broken"})

PROGRAMS: list[Program] = []


def stranger(library: str) -> Callable[[Callable[[], Call]], Callable[[], Call]]:
    """Adds a program; its title is the first line of its docstring."""

    def add(build: Callable[[], Call]) -> Callable[[], Call]:
        title = (inspect.getdoc(build) or "").split("\n")[0].removesuffix(".")
        PROGRAMS.append(Program(library=library, title=title, build=build))
        return build

    return add


def of(build: Callable[[], Call]) -> Program:
    """The program that a function builds."""
    return next(program for program in PROGRAMS if program.build is build)


def judge(program: Program) -> Verdict:
    """Runs a program natively and emulated.

    What a library raises is not known, so that every exception is a verdict.
    """
    if program.version is None:
        return Verdict("not installed")
    try:
        function, args = program.build()
        native = jax.jit(function)
        expected, neighbour = native(*args), native(*moved(args))
    except Exception as error:  # the library's
        return Verdict("broken", _named(error))
    try:
        actual = nj.jit(function, target="trn2", policy="fp32")(*args)
    except nj.NeuronJaxError as error:
        return Verdict("refused", _named(error))
    except Exception as error:  # whoever's
        return Verdict("crashed", _named(error))
    return compare(actual, expected, neighbour)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class Leaf(NamedTuple):
    """How far a leaf of the result is off, and may be."""

    path: str
    error: float
    bound: float

    @property
    def is_noise(self) -> bool:
        """Whether a movement of the arguments changes all of it."""
        return self.bound > MAGNIFIED * NOISE


def compare(actual: PyTree, expected: PyTree, neighbour: PyTree) -> Verdict:
    """The verdict on two results, given a third whose arguments had moved a little."""
    if jax.tree.structure(actual) != jax.tree.structure(expected):
        return Verdict("differs", "in the structure of its result")
    if _types(actual) != _types(expected):
        return Verdict("differs", "in the shapes or dtypes of its result")
    leaves = list(_leaves(actual, expected, neighbour))
    for path, error, bound in leaves:
        if not error <= bound:
            return Verdict("differs", f"by {error:.1e} in {path}, of {bound:.1e}")
    floats = [leaf for leaf in leaves if leaf.bound >= FLOOR]
    if not floats:
        return Verdict("agrees", "in every bit, of integers")
    said = [leaf for leaf in floats if not leaf.is_noise]
    worst = max(said or floats, key=lambda leaf: leaf.error / leaf.bound)
    noise = len(floats) - len(said)
    aside = f"; {noise} of {len(floats)} arrays are noise" if noise else ""
    return Verdict("agrees", f"within {worst.error:.1e} of {worst.bound:.1e}{aside}")


def _types(tree: PyTree) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    return {path: (x.dtype, x.shape) for path, x in bits.leaves(tree).items()}


def _leaves(actual: PyTree, expected: PyTree, neighbour: PyTree) -> Iterator[Leaf]:
    wanted, beside = bits.leaves(expected), bits.leaves(neighbour)
    for path, leaf in bits.leaves(actual).items():
        error = _distance(leaf, wanted[path])
        movement = _distance(beside[path], wanted[path])
        floor = FLOOR if _is_inexact(leaf) else _EXACT
        yield Leaf(path, error, max(floor, MAGNIFIED * movement))


def _distance(actual: np.ndarray, expected: np.ndarray) -> float:
    """Relative, in the 2-norm; of integers and booleans the share that differs."""
    if not _is_inexact(expected):
        return float(np.mean(actual != expected)) if expected.size else 0.0
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(actual)):
        return math.inf
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    wanted = np.where(finite, expected, 0).astype(wide)
    got = np.where(finite, actual, 0).astype(wide)
    size = float(np.linalg.norm(wanted))
    off = float(np.linalg.norm(got - wanted))
    return off / size if size else off


def _is_inexact(leaf: np.ndarray) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def moved(args: PyTree) -> PyTree:
    """The arguments, every FP32 element times 1 + 2^-23 or 1 - 2^-23, at random."""
    generator = np.random.Generator(np.random.PCG64(17))

    def move(leaf: Any) -> Any:
        array = np.asarray(leaf) if not _is_key(leaf) else None
        if array is None or array.dtype != np.float32:
            return leaf
        signs = generator.integers(0, 2, array.shape) * 2 - 1
        return jnp.asarray((array * (1 + signs * 2.0**-23)).astype(np.float32))

    return jax.tree.map(move, args)


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key)


def descent(loss: Callable[..., jax.Array], rate: float = 0.1) -> Callable[..., PyTree]:
    """(params, *batch) -> (loss, params after one step of gradient descent)."""

    def step(params: PyTree, *batch: PyTree) -> tuple[jax.Array, PyTree]:
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        return value, jax.tree.map(lambda p, g: p - rate * g, params, gradient)

    return step
