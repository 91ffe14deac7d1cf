"""The reference: the user's Python file that computes correct results, as in NKIBench.

`get_inputs()` draws arguments from NumPy's global generator, which the judge seeds;
`forward(*inputs)` computes the correct results in NumPy. If the kernel uses other
layouts, `transform_to_nki_inputs(inputs)` and `transform_nki_outputs(results,
expected)` convert arguments and results. The reference is trusted. The candidate (the
kernel to judge) is not trusted, and cannot read the reference.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from neuronjax.diagnostics.tolerance import Tolerance, error_bounds
from neuronjax.diagnostics.tolerance.bounds import SAMPLES
from neuronjax.errors import InvalidProgramError, NeuronJaxError, line_in

#: A reference with more input elements than this is not run with random rounding errors
#: (`tolerance/drawn.py`) or with a changed line (`mutants.py`).
LARGE_INPUTS = 1 << 22

#: Number of runs with random rounding errors, in place of `SAMPLES`, for more than
#: `LARGE_INPUTS` / 4 input elements, and for every seed after the first.
_FEWER_SAMPLES = 10

#: In the imported reference, `for` loops call the function `FOR` with the iterable, and
#: `while` loops call `WHILE` with the condition. Both functions return their argument,
#: unless `mutants.py` replaces the functions.
FOR, WHILE = "_for_of_the_judge", "_while_of_the_judge"


class _Asking(ast.NodeTransformer):
    def visit_For(self, node: Any) -> Any:
        self.generic_visit(node)
        node.iter = self._asked(FOR, node.iter)
        return node

    visit_comprehension = visit_For

    def visit_While(self, node: ast.While) -> ast.While:
        self.generic_visit(node)
        node.test = self._asked(WHILE, node.test)
        return node

    def _asked(self, name: str, of: ast.expr) -> ast.expr:
        call = ast.Call(ast.Name(name, ast.Load()), [of], [])
        return ast.fix_missing_locations(ast.copy_location(call, of))


class _AskingLoader(SourceFileLoader):
    """An importer that makes loops call `FOR` or `WHILE` and writes no bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        tree = _Asking().visit(ast.parse(Path(self.path).read_bytes()))
        return compile(tree, self.path, "exec", dont_inherit=True)


class ReferenceFailed(InvalidProgramError):
    """An error in the reference's file; the candidate is not at fault."""


@contextlib.contextmanager
def _reference_runs(path: Path) -> Iterator[None]:
    try:
        yield
    except NeuronJaxError:
        raise
    except Exception as error:
        raise ReferenceFailed(
            f"raises {type(error).__name__}: {error}",
            op="reference",
            location=line_in(str(path), error) or str(path),
            remedy="run get_inputs() and forward() without the judge first",
        ) from error


@dataclass(frozen=True)
class ReferenceCase:
    """The user's Python file that computes correct results, imported as a module."""

    path: Path
    module: ModuleType
    _newest: dict[str, tuple[int, Any]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, path: Path) -> ReferenceCase:
        """Import the reference in the file `path`.

        Raises:
            InvalidProgramError: there is no such file, or a function is missing.
            ReferenceFailed: the file cannot be imported.
        """
        loader = _AskingLoader("reference", str(path))
        spec = importlib.util.spec_from_file_location("reference", path, loader=loader)
        if not path.is_file() or spec is None or spec.loader is None:
            raise InvalidProgramError(
                f"{path} is no Python file", op="reference", remedy="name a .py file"
            )
        module = importlib.util.module_from_spec(spec)
        vars(module).update(dict.fromkeys((FOR, WHILE), lambda x: x))
        with _reference_runs(path):
            loader.exec_module(module)
        for name in ("get_inputs", "forward"):
            if not callable(getattr(module, name, None)):
                raise InvalidProgramError(
                    f"{path.name} has no function {name}",
                    op="reference",
                    remedy="define get_inputs() and forward(*inputs), as NKIBench does",
                )
        return cls(path, module)

    def inputs(self, seed: int) -> tuple[Any, ...]:
        """Return copies of the reference's arguments for `seed`."""
        return tuple(map(_own, self.drawn(seed)))

    def drawn(self, seed: int) -> tuple[Any, ...]:
        """Return the reference's arguments for `seed`; callers must not change them."""
        return self._of_seed("inputs", seed, self._draw)

    def _draw(self, seed: int) -> tuple[Any, ...]:
        np.random.seed(seed)
        with _reference_runs(self.path):
            return tuple(self.module.get_inputs())

    def _of_seed(self, what: str, seed: int, make: Callable[[int], Any]) -> Any:
        if self._newest.get(what, (None,))[0] != seed:
            self._newest[what] = seed, make(seed)
        return self._newest[what][1]

    def is_large(self, seed: int, most: int = LARGE_INPUTS) -> bool:
        """Return whether the inputs for `seed` have over `most` elements in total."""
        return sum(np.size(x) for x in self.drawn(seed)) > most

    def kernel_arguments(self, seed: int) -> tuple[Any, ...]:
        """Return copies of the arguments for `seed`, in the kernel's layout."""
        change = getattr(self.module, "transform_to_nki_inputs", list)
        inputs = self.inputs(seed)
        with _reference_runs(self.path):
            given = list(change(list(inputs)))
        held, own = [*map(_holder, given)], {*map(id, inputs)}
        is_own = len({*held}) == len(held) and own.issuperset(held)
        return tuple(given if is_own else map(_own, given))

    def expected(self, seed: int) -> tuple[np.ndarray, ...]:
        return self.answer(self.inputs(seed))

    def answer(self, inputs: Sequence[Any]) -> tuple[np.ndarray, ...]:
        """Return `forward`'s results for `inputs`, which `forward` may change."""
        with _reference_runs(self.path):
            return _arrays(self.module.forward(*inputs))

    def tolerances(
        self, seed: int, relative: float | None, *, is_later: bool = False
    ) -> tuple[Tolerance, ...]:
        """Return a tolerance for each result of the reference for `seed`.

        `relative` is the allowed relative L2 error. If it is None, tolerances are
        derived. They allow any order of addition, three BF16 products in place of an
        FP32 product (as in public kernels) and the emulator's elementary functions.
        `is_later`, for a second seed, makes fewer runs with random rounding errors.

        Raises:
            UnimplementedError: a function of the reference has no rule.
            InvalidProgramError: the reference converts an array to a Python number, as
                `float(x[0])` does; the error of a Python number is not known.
        """
        if relative is not None:
            return tuple(Tolerance.of_norm(v, relative) for v in self.expected(seed))
        is_few = is_later or self.is_large(seed, LARGE_INPUTS // 4)
        usual = _FEWER_SAMPLES if is_few else SAMPLES
        derive = functools.partial(self._derive, usual)
        return self._of_seed(f"tolerances, {usual}", seed, derive)

    def _derive(self, usual: int, seed: int) -> tuple[Tolerance, ...]:
        with _reference_runs(self.path):
            found = error_bounds(
                self.module.forward,
                self.drawn(seed),
                products="bf16x3",
                functions="emulated",
                samples=0 if self.is_large(seed) else None,
                usual=usual,
            )
        return tuple(found) if isinstance(found, list | tuple) else (found,)

    def results(
        self, returned: Any, expected: tuple[np.ndarray, ...]
    ) -> tuple[np.ndarray, ...]:
        """Return the kernel's results `returned` in the layout of `expected`."""
        given = _arrays(returned)
        change = getattr(self.module, "transform_nki_outputs", None)
        if change is None:
            return given
        single = not isinstance(returned, list | tuple)
        (first, *others) = expected
        wanted = expected if others else first
        return _arrays(change(given[0] if single else given, wanted))


def _holder(value: Any) -> int:
    while isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray):
        value = value.base
    return id(value)


def _own(value: Any) -> Any:
    return np.array(value) if isinstance(value, np.ndarray) else value


def _arrays(value: Any) -> tuple[np.ndarray, ...]:
    held = value if isinstance(value, list | tuple) else (value,)
    return tuple(map(np.asarray, held))
