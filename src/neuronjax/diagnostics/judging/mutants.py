"""Mutants: wrong versions of a reference, on which tolerances are tried.

Some mutants do nothing: they return zeros, or an input. Some replace one input by its
mean. All other mutants are runs of the reference with one change. In these runs, arrays
of the class `_Heard` intercept every NumPy function, so that one line of the source
computes something else: a sum drops its last term, an addition becomes a subtraction,
or a loop omits its last iteration.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from neuronjax.diagnostics.judging.case import FOR, WHILE, ReferenceCase
from neuronjax.diagnostics.judging.verdict import TriedMutant
from neuronjax.diagnostics.tolerance import Tolerance
from neuronjax.diagnostics.tolerance.fresh import names_changed
from neuronjax.diagnostics.tolerance.judged import flat_blocks

#: Largest number of runs of a reference, and largest number of array elements that all
#: runs together read. A reference with inputs above `case.LARGE_INPUTS` is not run.
_MOST_RUNS = 24
_MOST_READ = 1 << 30

_SIGNS = {np.add: np.subtract, np.subtract: np.add}
_SHORT_LOOP = "a loop without its last iteration"
_SHORT_SUM = "a sum without its last term"
_OTHER_SIGN = "an addition with the other sign"
Results = Sequence[np.ndarray]


class _Site(NamedTuple):
    """A change of the reference, and the bytecode instruction that it changes."""

    what: str
    line: int
    instruction: int

    def __str__(self) -> str:
        return f"{self.what}, line {self.line}"


def tried(
    case: ReferenceCase, seed: int, allowed: Sequence[Tolerance]
) -> tuple[TriedMutant, ...]:
    """Return the mutants of `case` for `seed`, and whether the tolerances `allowed`
    refuse them. A mutant is omitted if its results are correct up to one rounding."""
    inputs, right = case.drawn(seed), [t.value for t in allowed]
    found = [
        _judged(what, wrong, right, allowed, does_nothing=True)
        for what, wrong in _idle(inputs, right)
    ]
    if not case.is_large(seed):
        first = _ChangedRun(case, None)
        first.results(inputs)
        runs = min(_MOST_RUNS, _MOST_READ // max(1, first.read))
        for what, wrong in itertools.islice(_wrong(case, inputs, first), runs):
            if wrong and [w.shape for w in wrong] == [r.shape for r in right]:
                found.append(_judged(what, wrong, right, allowed, does_nothing=False))
    return tuple(mutant for mutant in found if mutant is not None)


def _judged(
    what: str,
    wrong: Results,
    right: Results,
    allowed: Sequence[Tolerance],
    *,
    does_nothing: bool,
) -> TriedMutant | None:
    pairs = [*zip(wrong, right, strict=True)]
    if all(w is r or _is_same(w, r) for w, r in pairs):
        return None
    differs = [(t, w) for t, (w, r) in zip(allowed, pairs, strict=True) if w is not r]
    caught = any(t.catches(w) for t, w in differs)
    error = max(t.check(w).distance for t, w in differs) if not caught else np.inf
    return TriedMutant(
        what=what, caught=caught, does_nothing=does_nothing, relative_l2=float(error)
    )


def _is_same(wrong: np.ndarray, right: np.ndarray) -> bool:
    step = 2.0**-23 if wrong.dtype.itemsize > 2 else 2.0**-7
    a, b = wrong.reshape(-1), right.reshape(-1)
    how: Any = {"rtol": step, "atol": 0.0, "equal_nan": True}
    parts = ((a[block], b[block]) for block in flat_blocks(a.size))
    wide = ([x.astype(np.float64) for x in pair] for pair in parts)
    return all(np.isclose(x, y, **how).all() for x, y in wide)


def _idle(inputs: Sequence[Any], right: Results) -> Iterator[tuple[str, Results]]:
    """Yield (description, `right` with one result replaced by zeros or an input)."""
    for number, result in enumerate(right):
        which = f"result {number} is " if len(right) > 1 else "the result is "
        given = {"zeros": np.zeros(result.shape)}
        for n, x in enumerate(inputs):
            if isinstance(x, np.ndarray) and x.size == result.size:
                given[f"input {n}"] = x.reshape(result.shape)
        for name, array in given.items():
            yield which + name, [*right[:number], array, *right[number + 1 :]]


def _wrong(
    case: ReferenceCase, inputs: Sequence[Any], right: _ChangedRun
) -> Iterator[tuple[str, Results | None]]:
    """Yield (change, results of a run with it or None if the run fails). Changes of all
    kinds alternate. `right` is the run without a change."""
    kinds: dict[str, list[Any]] = {}
    for number, x in enumerate(inputs):
        is_float = isinstance(x, np.ndarray) and x.dtype.kind not in "iubOSU"
        if is_float and x.size > 1:
            kinds.setdefault("input", []).append(number)
    for site in right.turns:
        kinds.setdefault(site.what, []).append(site)
    for of_kinds in itertools.zip_longest(*kinds.values()):
        for one in of_kinds:
            if isinstance(one, _Site):
                yield str(one), _ChangedRun(case, one, right.turns).results(inputs)
            elif one is not None:
                mean = np.mean(inputs[one].astype(np.float64))
                flat = np.full_like(inputs[one], mean)
                given = [*inputs[:one], flat, *inputs[one + 1 :]]
                run = _ChangedRun(case, None, right.turns)
                yield f"input {one} replaced by its mean", run.results(given)


class _ChangedRun:
    """One run of a reference, with one change or without a change.

    `changed` is the change, or None. `usual` has the `turns` of the unchanged run; it
    is empty for the unchanged run itself.

    Attributes:
        turns: bytecode instruction that a mutant can change -> number of executions, in
            the order of first execution.
        read: number of array elements that NumPy functions read; in a matrix product,
            times the number of columns of the second operand.
    """

    def __init__(
        self,
        case: ReferenceCase,
        changed: _Site | None,
        usual: Mapping[_Site, int] = {},
    ) -> None:
        self._case, self._usual = case, usual
        self._places = () if changed is None else (changed,)
        self._file = str(case.path)
        self.turns: dict[_Site, int] = {}
        self.read = 0
        self._array = type("_HeardHere", (_Heard,), {"run": self})

    def results(self, inputs: Sequence[Any]) -> Results | None:
        """Return the results for `inputs`; None if the change makes `forward` fail."""
        copies = [np.array(x) if isinstance(x, np.ndarray) else x for x in inputs]
        forward = self._case.module.forward
        names = {FOR: self._for, WHILE: self._while}
        with names_changed(forward, names), np.errstate(all="ignore"):
            try:
                found = forward(*map(self._heard, copies))
            except Exception:  # e.g. a variable that only the omitted iteration sets
                return None
        held = found if isinstance(found, list | tuple) else (found,)
        return [np.asarray(_plain(x)) for x in held]

    def _noted(self, what: str) -> _Site | None:
        """Count the bytecode instruction of the reference that led to this call. Return
        this instruction with `what`, or None if the call is not from the reference."""
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        if frame is None:
            return None
        site = _Site(what, frame.f_lineno, frame.f_lasti)
        self.turns[site] = self.turns.get(site, 0) + 1
        return site

    def _for(self, over: Iterable[Any]) -> Iterator[Any]:
        """Yield the values of `over`; a changed loop omits the last value."""
        turns, is_changed = iter(over), False
        for turn in turns:
            for following in turns:
                is_changed = self._noted(_SHORT_LOOP) in self._places
                yield turn
                turn = following
            if not is_changed:
                yield turn

    def _while(self, condition: Any) -> Any:
        """Return whether a `while` loop continues. A changed loop omits the last
        iteration of the unchanged run. If a run has more than twice the iterations of
        the unchanged run, raise `RuntimeError`."""
        site = self._noted(_SHORT_LOOP) if condition else None
        if site is None:
            return condition
        turns, usual = self.turns[site], self._usual.get(site, 0)
        if self._usual and turns > 2 * usual:
            raise RuntimeError("the loop does not end")
        return not (site in self._places and turns == usual)

    def called(self, function: Any, args: Any, named: Any) -> Any:
        args = _plain(args)
        named = {name: _plain(value) for name, value in named.items()}
        if function in _SIGNS and self._noted(_OTHER_SIGN) in self._places:
            function = _SIGNS[function]
        short = _SUMS[function](args, named) if function in _SUMS else None
        if short is not None and self._noted(_SHORT_SUM) in self._places:
            args = short
        result = function(*args, **named)
        size = sum(x.size for x in args if isinstance(x, np.ndarray))
        is_product = function in _PRODUCTS and args[0].ndim and np.ndim(args[1]) > 1
        self.read += size * (np.shape(args[1])[-1] if is_product else 1)
        return self._heard(result)

    def _heard(self, x: Any) -> Any:
        if isinstance(x, tuple | list):
            return type(x)(map(self._heard, x)) if type(x) in (tuple, list) else x
        is_float = isinstance(x, np.ndarray) and x.dtype.kind not in "iubOSU"
        return x.view(self._array) if is_float else x


class _Heard(np.ndarray):
    """An array that passes calls of NumPy functions to `run`."""

    run: _ChangedRun

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **named: Any
    ) -> Any:
        function = ufunc if method == "__call__" else getattr(ufunc, method)
        result = self.run.called(function, inputs, named)
        if out is None:
            return result
        out[0][...] = result
        return out[0]

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return self.run.called(func, args, kwargs)


def _plain(x: Any) -> Any:
    if isinstance(x, _Heard):
        return x.view(np.ndarray)
    return type(x)(map(_plain, x)) if type(x) in (tuple, list) else x


def _without_last(args: Any, number: int, axis: int | None) -> Any:
    x = np.array(args[number])
    if (x.size if axis is None else x.shape[axis]) < 2:
        return None
    if axis is None:
        x.reshape(-1)[-1] = 0
    else:
        np.moveaxis(x, axis, -1)[..., -1] = 0
    return (*args[:number], x, *args[number + 1 :])


def _of_product(args: Any, named: Any) -> Any:
    return _without_last(args, 0, -1) if np.ndim(args[0]) else None


def _of_sum(args: Any, named: Any) -> Any:
    axis = args[1] if len(args) > 1 else named.get("axis")
    return _without_last(args, 0, axis[-1] if isinstance(axis, tuple) else axis)


def _of_einsum(args: Any, named: Any) -> Any:
    terms, _, kept = args[0].replace(" ", "").partition("->")
    for number, letters in enumerate(terms.split(","), start=1):
        for axis, letter in enumerate(letters):
            if letter not in kept and (kept or terms.count(letter) > 1):
                return _without_last(args, number, axis)
    return None


_PRODUCTS = (np.matmul, np.dot, np.inner)
_SUMS: dict[Any, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(_PRODUCTS, _of_product),
    np.sum: _of_sum,
    np.mean: _of_sum,
    np.add.reduce: lambda args, named: _of_sum(args, {"axis": 0} | named),
    np.einsum: _of_einsum,
}
