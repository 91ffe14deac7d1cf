"""Comparisons of arrays bit by bit or in units in the last place, with reports.

The bits of a leaf are its elements as unsigned integers, so zeros of both signs differ
and NaNs with the same payload do not. Typed PRNG keys are compared by their data.
`diagnostics.differences` measures distances in ULP. JAX is needed only to walk pytrees.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from neuronjax.diagnostics.differences import alike, parts, steps_apart
from neuronjax.diagnostics.op_errors import errors_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """The distance of an array from a reference.

    Attributes:
        equal: whether the values are equal; zeros of both signs are one value.
        differing: how many elements are not equal.
        max_abs: the largest absolute error.
        max_ulp: the largest distance in units in the last place of the dtype; None for
            integers.
        relative_l2: norm of the error divided by the norm of the reference.
    """

    equal: bool
    differing: int
    max_abs: float
    max_ulp: float | None
    relative_l2: float

    def __str__(self) -> str:
        ulp = "" if self.max_ulp is None else f" ({self.max_ulp:.4g} ULP)"
        return (
            f"at most {self.max_abs:.3g}{ulp} apart, relative L2 {self.relative_l2:.3g}"
        )


def difference(actual: np.ndarray, reference: np.ndarray) -> Difference:
    """Compare arrays of one shape and dtype, complex numbers as their two parts."""
    actual, reference = parts(actual), parts(reference)
    a, b = (np.asarray(x, np.float64) for x in (actual, reference))
    with np.errstate(invalid="ignore", over="ignore"):
        same = alike(a, b)
        error = np.where(same, 0.0, np.abs(a - b))
    is_integer = actual.dtype.kind in "iub"
    steps = np.zeros(0) if is_integer else steps_apart(actual, reference)
    return Difference(
        equal=bool(same.all()),
        differing=int((~same).sum()),
        max_abs=float(np.nan_to_num(error, nan=np.inf, posinf=np.inf).max(initial=0.0)),
        max_ulp=None if is_integer else float(steps.max(initial=0.0)),
        relative_l2=errors_of(a, b).relative_l2,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeafDifference:
    """A leaf that differs from its reference.

    Attributes:
        path: the leaf's path in the pytree, "params/w".
        what: the difference in words if no elements were compared; otherwise "".
        index: the index of the first element that differs.
        actual: the value of that element as text, with its bit pattern.
        expected: the value of the reference's element, as text in the same form.
        differing: how many elements differ.
        compared: how many elements were compared.
        size: how far apart the arrays are; None if they cannot be compared.
    """

    path: str
    what: str = ""
    index: tuple[int, ...] = ()
    actual: str = ""
    expected: str = ""
    differing: int = 0
    compared: int = 0
    size: Difference | None = None

    @property
    def badness(self) -> tuple[float, float]:
        """A key that orders differences, the largest last."""
        if self.size is None:
            return math.inf, math.inf
        return self.size.relative_l2, self.size.max_ulp or 0.0

    def __str__(self) -> str:
        if self.what:
            return f"{self.path}: {self.what}"
        where = f"{self.path}[{', '.join(map(str, self.index))}]"
        return (
            f"{where}: {self.actual}, expected {self.expected}; "
            f"{self.differing} of {self.compared} elements differ"
            + (f", {self.size}" if self.size else "")
        )

    def record(self) -> dict[str, Any]:
        """Return the fields, for JSON and tables."""
        return dataclasses.asdict(self)


class BitsDiffer(AssertionError):
    """The error of this module's assertions.

    Attributes:
        leaves: every leaf that differs.
    """

    def __init__(self, message: str, leaves: Sequence[LeafDifference] = ()) -> None:
        super().__init__(message)
        self.leaves = tuple(leaves)


_MOST_SHOWN = 8
_FIRST = 4


def assert_bitwise_equal(actual: Any, expected: Any, what: str = "") -> None:
    """Assert that two pytrees have the same structure and leaves with the same bits.

    Args:
        actual: a pytree of arrays and numbers.
        expected: the reference, a pytree of the same structure.
        what: text to put in front of the message.

    Raises:
        BitsDiffer: the pytrees differ; the error names the leaf, the index, both values
            and both bit patterns.
    """
    __tracebackhide__ = True
    _raise_for((compared(*pair) for pair in _pairs(actual, expected, what)), what)


def assert_ulp(actual: Any, expected: Any, max_ulp: float, what: str = "") -> None:
    """Assert that no element is more than `max_ulp` from its reference.

    A ULP is a step between neighbouring numbers of the leaf's own dtype. Integers and
    booleans must be equal. NaNs at the same index are equal.

    Args:
        actual: a pytree of arrays and numbers.
        expected: the reference, a pytree of the same structure.
        max_ulp: the largest distance allowed.
        what: text to put in front of the message.

    Raises:
        BitsDiffer: an element is further away; the error names the leaf, the index of
            the worst element and its distance.
    """
    __tracebackhide__ = True
    pairs = _pairs(actual, expected, what)
    _raise_for((_apart(*pair, max_ulp) for pair in pairs), what)


def compared(
    path: str, actual: np.ndarray, expected: np.ndarray
) -> LeafDifference | None:
    """Return how two arrays differ in type or bits; None if they are equal."""
    if mismatch := _type_difference(path, actual, expected):
        return mismatch
    wrong = np.flatnonzero(bits(actual) != bits(expected))
    if not wrong.size:
        return None
    return _difference(path, actual, expected, int(wrong[0]), wrong.size)


def _apart(
    path: str, actual: np.ndarray, expected: np.ndarray, max_ulp: float
) -> LeafDifference | None:
    if mismatch := _type_difference(path, actual, expected):
        return mismatch
    if actual.dtype.kind in "iub":
        return compared(path, actual, expected)
    distances = ulps(actual, expected)
    wrong = np.flatnonzero(distances > max_ulp)
    if not wrong.size:
        return None
    worst = int(np.argmax(distances))
    differing = _difference(path, actual, expected, worst, wrong.size)
    distance = f"{differing.actual} ({distances[worst]:g} ULP; {max_ulp:g} allowed)"
    return dataclasses.replace(differing, actual=distance)


def ulps(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return a flat array of each element's distance in ULP; the distance of complex
    numbers is the larger distance of their two parts."""
    steps = steps_apart(parts(actual), parts(expected))
    count = 2 if actual.dtype.kind == "c" else 1
    return steps.reshape(-1, count).max(axis=1)


def _type_difference(
    path: str, actual: np.ndarray, expected: np.ndarray
) -> LeafDifference | None:
    if (actual.dtype, actual.shape) == (expected.dtype, expected.shape):
        return None
    return LeafDifference(
        path=path, what=f"is {type_text(actual)}, expected {type_text(expected)}"
    )


def _difference(
    path: str, actual: np.ndarray, expected: np.ndarray, at: int, count: int
) -> LeafDifference:
    return LeafDifference(
        path=path,
        index=tuple(int(i) for i in np.unravel_index(at, actual.shape)),
        actual=element_text(actual.reshape(-1)[at]),
        expected=element_text(expected.reshape(-1)[at]),
        differing=int(count),
        compared=actual.size,
        # Unsigned integers are patterns of bits more often than numbers.
        size=None if actual.dtype.kind == "u" else difference(actual, expected),
    )


def _raise_for(leaves: Iterable[LeafDifference | None], what: str) -> None:
    __tracebackhide__ = True
    differing = [leaf for leaf in leaves if leaf]
    if not differing:
        return
    head = f"{what}: " if what else ""
    plural = "leaf differs" if len(differing) == 1 else "leaves differ"
    raise BitsDiffer(f"{head}{len(differing)} {plural}\n{listed(differing)}", differing)


def listed(found: Sequence[LeafDifference]) -> str:
    """Return one line for each of the eight leaves with the largest differences."""
    ordered = sorted(found, key=lambda leaf: leaf.badness, reverse=True)
    lines = [f"  {leaf}" for leaf in ordered[:_MOST_SHOWN]]
    if len(found) > _MOST_SHOWN:
        lines.append(f"  and {len(found) - _MOST_SHOWN} more")
    return "\n".join(lines)


def _pairs(
    actual: Any, expected: Any, what: str
) -> list[tuple[str, np.ndarray, np.ndarray]]:
    trees = jax.tree.structure(actual), jax.tree.structure(expected)
    if trees[0] != trees[1]:
        head = f"{what}: " if what else ""
        raise BitsDiffer(f"{head}the structure is {trees[0]}, expected {trees[1]}")
    wanted = leaves_of(expected)
    return [(path, leaf, wanted[path]) for path, leaf in leaves_of(actual).items()]


def leaves_of(tree: Any) -> Mapping[str, np.ndarray]:
    """Return path -> array for every leaf; the path of a single leaf is "result"."""
    pairs, _ = jax.tree.flatten_with_path(tree)
    return {path_text(path): as_numpy(leaf) for path, leaf in pairs}


def path_text(path: tuple) -> str:
    """Return a pytree path as text, "params/w"."""
    return jax.tree_util.keystr(path, simple=True, separator="/") or "result"


def as_numpy(leaf: Any) -> np.ndarray:
    """Return a leaf as an array; a Python number gets JAX's dtype for it."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        leaf = jax.numpy.asarray(leaf)
    elif jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def bits(array: np.ndarray) -> np.ndarray:
    """Return the elements as a flat array of unsigned integers with the same bits."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.itemsize > 8:
        raise TypeError(f"elements of {flat.dtype} have no integer of their width")
    return flat.view(f"u{flat.dtype.itemsize}")


def figures_text(array: np.ndarray) -> str:
    """Return norm, range and first values: "norm 1.5, -0.5 to 1; 0.25 1 -0.5 ..."."""
    numbers = np.asarray(parts(array), np.float64).reshape(-1)
    if not numbers.size:
        return "empty"
    with np.errstate(all="ignore"):
        norm = np.sqrt(np.sum(np.square(numbers)))
    first = " ".join(f"{x:.6g}" for x in numbers[:_FIRST])
    more = " ..." * (numbers.size > _FIRST)
    return f"norm {norm:.6g}, {numbers.min():.6g} to {numbers.max():.6g}; {first}{more}"


def type_text(array: Any) -> str:
    """Return dtype and shape as text, "float32[2,3]"."""
    return f"{array.dtype.name}[{','.join(map(str, array.shape))}]"


def element_text(element: np.generic) -> str:
    """Return a number and its bit pattern as text, "0.1 (0x3dcccccd)"."""
    digits = 2 * element.dtype.itemsize
    pattern = int(bits(np.asarray(element))[0])
    value = element.item()
    if not isinstance(value, int | float | complex):
        value = float(element)
    shown = f"{value:.9g}" if isinstance(value, float) else str(value)
    return f"{shown} (0x{pattern:0{digits}x})"
