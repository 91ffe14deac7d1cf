"""Results that a correct chip may give, and the comparison of outputs with them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from neuronjax.diagnostics.comparison_tables import short
from neuronjax.diagnostics.legal.held import Held
from neuronjax.diagnostics.tolerance.bounds import tolerance_of
from neuronjax.diagnostics.tolerance.judged import Judged, Tolerance, apart
from neuronjax.diagnostics.tolerance.model import ErrorModel
from neuronjax.errors import InvalidProgramError
from neuronjax.report.tables import NUMBER, TEXT, WORD, Displayed, new_table


class BoundArray(np.ndarray):
    """Error bounds that `np.testing.assert_allclose` accepts as `atol`.

    NumPy formats `atol` as one number and adds it to a flat array. If outputs have NaN
    or Inf, use `LegalResults.check`: NumPy removes these first, so the addition fails.
    """

    def __format__(self, spec: str) -> str:
        if self.ndim == 0 or not self.size:
            return super().__format__(spec)
        return f"{float(self.min()):{spec}} to {float(self.max()):{spec}}"

    def __add__(self, other: Any) -> Any:
        own, more = np.asarray(self), np.asarray(other)
        if more.ndim == 1 and more.size == own.size:
            own = own.reshape(-1)
        return own + more


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LegalOutput:
    """The legal values of one output: those that a correct chip may give.

    Attributes:
        path: path in the pytree, such as "grads/w"; "the result" for one array.
        dtype: the dtype that the program declares.
        tolerance: the reference and the bounds; contains the next three fields.
        expected: the reference, float64; integers and booleans in `dtype`.
        atol: absolute bound of every element's error, float64. 0 where only the bits of
            the reference are legal. Inf where no bound is known: the element may
            overflow, or depends on numbers that differ by less than their error bounds.
        l2: bound of the L2 norm of all errors.
    """

    path: str
    dtype: np.dtype
    tolerance: Tolerance

    expected = property(lambda self: self.tolerance.value)
    atol = property(lambda self: self.tolerance.bound)
    l2 = property(lambda self: self.tolerance.l2_bound)

    @property
    def power(self) -> float:
        """Return the smallest relative error that is refused if all elements have it.

        If it is 1 or more, the bounds are useless: zeros in place of all elements pass.
        """
        values = np.abs(self.expected.astype(np.float64))
        known = np.isfinite(values) & np.isfinite(self.atol) & (values > 0)
        if not known.any():
            return math.inf
        alone = float(np.min(self.atol[known] / values[known]))
        return min(alone, self.l2 / float(np.linalg.norm(values[known])))

    def check(self, actual: Any) -> CheckedOutput:
        """Compare `actual`, this output of a run, with the legal values.

        Raises:
            InvalidProgramError: the output has another shape.
        """
        given = np.asarray(actual)
        if given.shape != self.expected.shape:
            raise InvalidProgramError(
                f"{self.path} has shape {given.shape}, but shape "
                f"{self.expected.shape} in the program",
                remedy="pass the outputs of the same program and arguments",
            )
        judged = self.tolerance.check(given)
        error, known = apart(given, self.expected), ~np.isposinf(self.atol)
        outside, worst = known & (error > self.atol), judged.worst

        def there(array: np.ndarray) -> float:
            return 0.0 if worst is None else float(array[worst])

        return CheckedOutput(
            path=self.path,
            judged=judged,
            indices=np.argwhere(outside),
            excess=error[outside] - self.atol[outside],
            index=worst,
            value=there(given),
            expected=there(self.expected),
            allowed=there(self.atol),
            power=self.power,
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CheckedOutput:
    """The comparison of one output with its legal values; true if the output is legal.

    Attributes:
        judged: counts of elements, and the norm of all errors with its bound.
        indices: row-major indices of elements beyond their bounds, int64 [n, rank].
        excess: absolute error minus bound of the elements in `indices`, float64 [n];
            Inf for an Inf or a NaN in place of a number.
        index: index of the element whose error is the largest multiple of its bound;
            None for an empty output.
        value, expected, allowed: the value, reference and bound at `index`.
        power: see `LegalOutput.power`.
    """

    path: str
    judged: Judged
    indices: np.ndarray
    excess: np.ndarray
    index: tuple[int, ...] | None
    value: float
    expected: float
    allowed: float
    power: float

    def __bool__(self) -> bool:
        return bool(self.judged)

    def as_text(self) -> str:
        """Return the worst error as at most two lines of 80 columns."""
        judged, place = self.judged, list(self.index or ())
        if not judged.elements:
            return f"{self.path}: empty"
        if judged.refused == 0 and not judged:
            return (
                f"{self.path}: each element is legal, the whole output is not: rel. L2 "
                f"{short(judged.relative_l2)}\n"
                f"   where at most {short(judged.relative_l2_bound)} is legal"
            )
        count = f"{judged.refused} of {judged.elements} elements outside their bounds"
        value, expected = (f"{x:.{self._digits}g}" for x in (self.value, self.expected))
        return (
            f"{self.path}: {count}\n   worst at {place}: {value}, expected {expected} "
            f"+- {self.allowed:.2g}"
        )

    @property
    def _digits(self) -> int:
        """Return the number of digits that show a hundredth of the bound, 3 to 17."""
        size = max(abs(self.value), abs(self.expected))
        if not (0 < self.allowed < math.inf and 0 < size < math.inf):
            return 7
        return min(max(3, 3 + math.floor(math.log10(size / self.allowed))), 17)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LegalCheck(Displayed):
    """The comparison of a run's outputs with legal values; true if all are legal."""

    outputs: tuple[CheckedOutput, ...]

    def __bool__(self) -> bool:
        return all(self.outputs)

    @property
    def worst(self) -> CheckedOutput:
        """Return the output whose error is the largest multiple of its bound."""
        return max(self.outputs, key=lambda o: o.judged.times_bound)

    def __repr__(self) -> str:
        wrong = sum(not o for o in self.outputs)
        return f"<neuronjax.LegalCheck: {wrong} of {len(self.outputs)} outputs illegal>"

    def __rich__(self) -> RenderableType:
        wrong = [o for o in self.outputs if not o]
        if not wrong:
            text = Text("legal: every element is within its bound", style="green")
            if vague := [o.path for o in self.outputs if o.power >= 1]:
                names = ", ".join(vague)
                text.append(f"; undecided, since zeros also pass, for: {names}", "red")
            return text
        lines = [Text(o.as_text()) for o in wrong]
        head = f"not legal: {len(wrong)} of {len(self.outputs)} outputs"
        return Group(Text(head, style="bold red"), *lines)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LegalResults(Displayed):
    """Every result that a program may have, as a value and a bound for each element.

    Attributes:
        setting: the first line of every report: target, logical core, numerics and SDK.
        policy: which numbers are cast, and how.
        outputs: legal values of the leaves, in the order of the program's outputs.
        failure: probability that a legal element is refused.
        tree: the pytree structure of the outputs.
        notes: remarks for the reader of a report.
    """

    name: str
    target: str
    setting: str
    policy: str
    outputs: tuple[LegalOutput, ...]
    failure: float
    tree: Any
    notes: tuple[str, ...] = ()

    @property
    def expected(self) -> Any:
        """Return the float64 reference, in the structure that the function returns."""
        return jax.tree.unflatten(self.tree, [o.expected for o in self.outputs])

    @property
    def atol(self) -> Any:
        """Return float64 error bounds, in the structure that the function returns."""
        bounds: list[Any] = [o.atol.view(BoundArray) for o in self.outputs]
        return jax.tree.unflatten(self.tree, bounds)

    def allows(self, outputs: Any) -> bool:
        """Return whether `outputs` of a run are legal; see `check`."""
        return bool(self.check(outputs))

    def check(self, outputs: Any) -> LegalCheck:
        """Return which elements of `outputs` exceed their bounds, and by how much.

        Any number is legal where the bound is Inf. Elsewhere, Inf and NaN are legal
        only where the reference has the same value. The L2 norm of all errors also has
        a bound, which is sharper than the bounds of single elements. `outputs` have the
        structure that the function returns, and any dtypes.

        Raises:
            InvalidProgramError: the number or a shape of the `outputs` is wrong.
        """
        leaves = jax.tree.leaves(outputs)
        if len(leaves) != len(self.outputs):
            raise InvalidProgramError(
                f"{len(leaves)} outputs given; the program has {len(self.outputs)}",
                op=self.name,
                remedy="pass what the function returns",
            )
        pairs = zip(self.outputs, leaves, strict=True)
        return LegalCheck(outputs=tuple(o.check(x) for o, x in pairs))

    def table(self) -> Table:
        """Return a table with the error bounds and the power of every output."""
        figures = ("rms", "median", "largest", "unknown", "power")
        return new_table(
            f"{self.name} on {self.setting}:\nmedian and largest error bounds",
            {"output": TEXT, "type": WORD} | dict.fromkeys(figures, NUMBER),
            (_row(o) for o in self.outputs),
            caption="power: an output fails if all elements have this relative error",
            width=80,
            min_width=None,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON value with figures of every output, without the arrays."""
        return {
            **{n: getattr(self, n) for n in ("name", "target", "policy", "failure")},
            "outputs": [_figures(o) for o in self.outputs],
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        return (
            f"<neuronjax.LegalResults of {self.name}: {self.policy} on {self.target}, "
            f"{len(self.outputs)} outputs>"
        )

    def __rich__(self) -> RenderableType:
        notes = [Text(f"note: {note}", style="dim") for note in self.notes]
        return Group(self.table(), *notes)


def _figures(output: LegalOutput) -> dict[str, Any]:
    values = output.expected.astype(np.float64)
    finite = values[np.isfinite(values)]
    known = output.atol[np.isfinite(output.atol)]
    return {
        "path": output.path,
        "dtype": output.dtype.name,
        "shape": list(output.expected.shape),
        "rms": math.sqrt(float(np.mean(finite**2))) if finite.size else 0.0,
        "median_bound": float(np.median(known)) if known.size else None,
        "largest_bound": float(known.max()) if known.size else None,
        "unknown": output.atol.size - known.size,
        "power": output.power if math.isfinite(output.power) else None,
    }


def _row(output: LegalOutput) -> Sequence[str]:
    figures = _figures(output)
    bounds = (figures["median_bound"], figures["largest_bound"])
    return (
        output.path,
        f"{figures['dtype']}[{','.join(map(str, figures['shape']))}]",
        short(figures["rms"]),
        *("" if bound is None else short(bound) for bound in bounds),
        str(figures["unknown"]),
        "none" if output.power >= 1 else f"{100 * output.power:.2g} %",
    )


def legal_output(
    held: Held, path: str, dtype: np.dtype, model: ErrorModel
) -> LegalOutput:
    """Return the legal values of the output at `path`; `held` is its value."""
    with np.errstate(all="ignore"):
        tolerance = tolerance_of(held.tracked(model))
    expected = tolerance.value.astype(np.float64)
    if dtype.kind in "iub":
        expected = held.values.astype(dtype)
    bound = held.bound(model).astype(np.float64)
    return LegalOutput(
        path=path, dtype=dtype, tolerance=Tolerance(expected, bound, tolerance.l2_bound)
    )
