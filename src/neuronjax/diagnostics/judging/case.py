"""What a candidate is compared with: a Python file in the way of NKIBench.

`get_inputs()` draws arguments from NumPy's global generator, which is seeded before;
`forward(*inputs)` computes what is right, in NumPy. Where the kernel takes or returns
other layouts `transform_to_nki_inputs(inputs)` and `transform_nki_outputs(results,
expected)` say how. The file is the user's own and is trusted; the candidate is not, and
sees nothing of it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from neuronjax.diagnostics.judging.verdict import SeedVerdict
from neuronjax.diagnostics.tolerance import Judged, Tolerance, error_bounds
from neuronjax.errors import InvalidProgramError


@dataclass(frozen=True)
class ReferenceCase:
    """A reference, as its file says it."""

    path: Path
    module: ModuleType

    @classmethod
    def of(cls, path: Path) -> ReferenceCase:
        """The case of a file.

        Raises:
            InvalidProgramError: there is no such file, or a function is missing.
        """
        spec = importlib.util.spec_from_file_location("reference", path)
        if not path.is_file() or spec is None or spec.loader is None:
            raise InvalidProgramError(
                f"{path} is no Python file", op="reference", remedy="name a .py file"
            )
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name in ("get_inputs", "forward"):
            if not callable(getattr(module, name, None)):
                raise InvalidProgramError(
                    f"{path.name} has no function {name}",
                    op="reference",
                    remedy="define get_inputs() and forward(*inputs), as NKIBench does",
                )
        return cls(path, module)

    def inputs(self, seed: int) -> tuple[Any, ...]:
        """The reference's arguments of a seed."""
        np.random.seed(seed)
        return tuple(self.module.get_inputs())

    def kernel_arguments(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The same as the kernel takes them, in memory of their own."""
        change = getattr(self.module, "transform_to_nki_inputs", list)
        return tuple(_own(v) for v in change(list(inputs)))

    def expected(self, inputs: Sequence[Any]) -> tuple[np.ndarray, ...]:
        """What is right."""
        return _arrays(self.module.forward(*inputs))

    def tolerances(self, inputs: Sequence[Any]) -> tuple[Tolerance, ...]:
        """What a right result may be, whatever the order of addition.

        Products of FP32 may be three of BF16, as public kernels make them.

        Raises:
            UnimplementedError: a function of the reference has no rule.
            InvalidProgramError: the reference takes numbers out of its arrays.
        """
        found = error_bounds(self.module.forward, inputs, products="bf16x3")
        return tuple(found) if isinstance(found, list | tuple) else (found,)

    def results(
        self, returned: Any, expected: tuple[np.ndarray, ...]
    ) -> tuple[np.ndarray, ...]:
        """What the kernel returned, in the reference's layout."""
        change: Callable[[Any, Any], Any] | None
        change = getattr(self.module, "transform_nki_outputs", None)
        if change is None:
            return _arrays(returned)
        given = _arrays(returned)
        single = not isinstance(returned, list | tuple)
        (first, *others) = expected
        wanted = expected if others else first
        return _arrays(change(given[0] if single else given, wanted))


def _own(value: Any) -> Any:
    return np.array(value) if isinstance(value, np.ndarray) else value


def _arrays(value: Any) -> tuple[np.ndarray, ...]:
    held = value if isinstance(value, list | tuple) else (value,)
    return tuple(map(np.asarray, held))


def compared(
    seed: int,
    actual: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    allowed: float | tuple[Tolerance, ...],
) -> SeedVerdict:
    """One comparison.

    `allowed` is a tolerance for every result, or the relative L2 error that each may
    have, as NKIBench has it (accelopt/eval_numpy.py)."""
    shapes = [a.shape for a in actual], [e.shape for e in expected]
    if shapes[0] != shapes[1]:
        why = f"returns {_shown(shapes[0])} where the reference has {_shown(shapes[1])}"
        return SeedVerdict(
            seed=seed,
            correct=False,
            relative_l2=float("inf"),
            allowed=0.0,
            worst=None,
            why=why,
        )
    pairs = [
        (np.asarray(a, np.float64), np.asarray(e, np.float64))
        for a, e in zip(actual, expected, strict=True)
    ]
    if isinstance(allowed, tuple):
        error = _relative_l2(pairs)
        most = max(t.relative_l2_bound for t in allowed)
        why = _beyond([t.check(a) for t, a in zip(allowed, actual, strict=True)])
    else:
        error = max(_relative_l2([pair]) for pair in pairs)
        most, why = allowed, _too_far(error, allowed, pairs)
    return SeedVerdict(
        seed=seed,
        correct=not why,
        relative_l2=error,
        allowed=most,
        worst=_worst(pairs),
        why=why,
    )


def _too_far(
    error: float, allowed: float, pairs: Sequence[tuple[np.ndarray, np.ndarray]]
) -> str:
    if error <= allowed:
        return ""
    unset = sum(int((~np.isfinite(a) & np.isfinite(e)).sum()) for a, e in pairs)
    why = f"relative L2 {error:.3g}, allowed {allowed:.3g}"
    return f"{why}; {unset:,} elements are not finite" if unset else why


def _beyond(judged: Sequence[Judged]) -> str:
    """What the first result that is wrong is wrong with; "" if none is."""
    for number, found in enumerate(judged):
        if found:
            continue
        which = f"result {number}: " if len(judged) > 1 else ""
        if not found.refused:
            l2, bound = found.relative_l2, found.relative_l2_bound
            return f"{which}relative L2 {l2:.3g}, at most {bound:.3g} if it were right"
        return (
            f"{which}{found.refused:,} of {found.elements:,} elements are further off "
            f"than any order of addition; the worst {found.times_bound:.3g} times"
        )
    return ""


def _relative_l2(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """Elements on which both say the same Inf or NaN count as equal."""
    squares = norm = 0.0
    for a, e in pairs:
        same = (a == e) | (np.isnan(a) & np.isnan(e))
        difference = np.where(same, 0.0, a - e)
        squares += float(np.square(difference).sum())
        norm += float(np.square(np.where(np.isfinite(e), e, 0.0)).sum())
    if not np.isfinite(squares):
        return float("inf")
    return (squares / norm) ** 0.5 if norm else squares**0.5


def _worst(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any] | None:
    """The element that is furthest off; one that is not finite before all others."""
    found: dict[str, Any] | None = None
    largest = 0.0
    for number, (a, e) in enumerate(pairs):
        if not a.size:
            continue
        with np.errstate(invalid="ignore"):
            off = np.abs(a - e)
        off = np.where((a == e) | (np.isnan(a) & np.isnan(e)), 0.0, off)
        off = np.where(np.isnan(off), np.inf, off)
        place = np.unravel_index(int(off.argmax()), off.shape)
        if off[place] > largest:
            largest = float(off[place])
            found = {
                "result": number,
                "index": [int(i) for i in place],
                "actual": float(a[place]),
                "expected": float(e[place]),
            }
    return found


def _shown(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(f"[{', '.join(map(str, s))}]" for s in shapes) or "nothing"
