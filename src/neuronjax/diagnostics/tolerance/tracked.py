"""An array that carries, beside its values, the scale of the error of every element.

NumPy lets such an array execute each function (`__array_ufunc__`,
`__array_function__`), by the rules that other files register here. There are three
kinds of error, since they add differently in a sum:

- `own`: errors that are independent between elements, such as roundings; squares add.
- `joint`: errors with unknown correlations; magnitudes add.
- `shared`: one signed error that many elements have. It passes through sums with its
  sign and may cancel, as an error common to all exponentials in exp(x) / sum(exp(x)).
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import ctypes
import dataclasses
import functools
import inspect
import itertools
import math
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import _umath_linalg

from neuronjax.diagnostics.tolerance.model import ErrorModel
from neuronjax.diagnostics.tolerance.runs import RunsApartError, of_run, packed
from neuronjax.errors import InvalidProgramError, UnimplementedError, user_line
from neuronjax.numerics.float_format import get_format

#: Arrays with more elements than this have FP32 values; errors include this rounding.
LARGE_ELEMENTS = 1 << 22

#: Rules work on blocks of this many elements, which stay in a processor's cache.
BLOCK_ELEMENTS = 1 << 15

UFUNCS: dict[Any, Callable[..., Any]] = {}
FUNCTIONS: dict[Any, Callable[..., Any]] = {}
REMEDY = "give an explicit tolerance for this reference"

_FEWEST_FOR_THREADS = 64  # fewer blocks are computed without threads
_THREADS = min(8, os.cpu_count() or 1)
#: A library of NumPy that links BLAS. If this BLAS is not OpenBLAS, `_blas` returns 0.
_BLAS = ctypes.CDLL(_umath_linalg.__file__)
#: OpenBLAS's number of threads before each running call of `in_threads`. A call that
#: ends restores and removes the last number, so the first number is restored last.
_BEFORE: list[int] = []

# Arrays that are not yet stored (`pending.Pending`); the key is the array's `source`.
UNSETTLED: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

_SOURCES = itertools.count()


@dataclasses.dataclass(frozen=True)
class Shared:
    """One signed error that many elements of an array have.

    Attributes:
        is_relative: whether the error is `scale` times the value, instead of `scale`.
        scale: has the shape of the array, and stride 0 along axes of equal scale.
        cause: the name of a function that makes the same error in every call, or
            "constants" if storing constants made the error; else "".
    """

    is_relative: bool
    scale: np.ndarray
    cause: str = ""

    def of(self, value: np.ndarray, part: Any = ...) -> np.ndarray:
        """Return the error's magnitude for `value`, the elements at index `part`."""
        size = self.scale[part]
        if self.is_relative:
            size = np.multiply(size, value, dtype=np.float32, casting="same_kind")
        return np.abs(size)


class ErrorParts(NamedTuple):
    """Value and errors of some elements of a tracked array; see `Tracked`."""

    value: np.ndarray
    own: np.ndarray | None
    joint: np.ndarray | None

    def correlated(
        self, shared: Mapping[int, Shared], block: Any = ...
    ) -> np.ndarray | None:
        """Return the sum of `joint` and of the errors in `shared` at the index `block`;
        None if there are no such errors."""
        total = self.joint
        for term in shared.values():
            scale = term.of(self.value, block)
            total = scale if total is None else total + scale
        return total

    def scale(self, shared: Mapping[int, Shared] = {}, block: Any = ...) -> Any:
        """Return the sum of all errors; 0.0 if there are no errors."""
        correlated = self.correlated(shared, block)
        if self.own is None:
            return 0.0 if correlated is None else correlated
        return self.own if correlated is None else self.own + correlated


class Tracked(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of values with the scales of their errors; see the module.

    Attributes:
        value: the numbers: float64; FP32 in a large array; bool or integer for results
            of these dtypes that errors may change.
        own: scale of independent errors, or None. FP32.
        joint: scale of correlated errors, or None. FP32.
        shared: errors that several elements share. The key is the number (`source`) of
            the array in which the error arose.
        dtype: the dtype that the reference declares.
        model: how a correct kernel rounds.
    """

    def __init__(
        self,
        value: np.ndarray,
        model: ErrorModel,
        dtype: Any = np.float32,
        own: np.ndarray | None = None,
        joint: np.ndarray | None = None,
        shared: Mapping[int, Shared] | None = None,
    ) -> None:
        self.value = value
        self.model = model
        self.dtype = np.dtype(dtype)
        self.own = own
        self.joint = joint
        self.shared = dict(shared or {})
        self.source = next(_SOURCES)
        self.origin: tuple[Tracked, Any] | None = None
        self.is_rearranged = False

    shape = property(lambda self: self.value.shape)
    ndim = property(lambda self: self.value.ndim)
    size = property(lambda self: self.value.size)

    carrier = property(lambda self: self.value.dtype)
    functions = 0  # number of functions that compute a part of a `pending.Pending`
    has_own = property(lambda self: self.own is not None)
    has_joint = property(lambda self: self.joint is not None)

    @property
    def is_exact(self) -> bool:
        return not (self.has_own or self.has_joint or self.shared)

    @property
    def is_batch(self) -> bool:
        """Return whether the array holds the numbers of several runs."""
        return self.model.draw is not None and self.model.draw.count > 0

    def of_run(self, number: int) -> Tracked:
        """Return the numbers of run `number`, as an array whose model has no `draw`."""
        return Tracked(of_run(self.value, number), self.model.alone, self.dtype)

    def in_runs(self, runs: np.ndarray, model: ErrorModel) -> Tracked:
        """Return `runs`, whose last axis is the run, with the errors of this array."""
        errors = self.own, self.joint, self.shared
        return Tracked(packed(runs), model, self.dtype, *errors)

    def wider(self, error: Any) -> Tracked:
        """Return this array with `error` as one more independent error per element."""
        own = np.asarray(error if self.own is None else self.own + error, np.float32)
        return Tracked(self.value, self.model, self.dtype, own, self.joint, self.shared)

    def passed(self) -> Tracked:
        """Return this array for one pass over all elements; `Pending` counts passes."""
        return self

    def part(self, block: Any) -> ErrorParts:
        """Return the values and errors at the index `block`, see `blocks`."""
        own, joint = (None if e is None else e[block] for e in (self.own, self.joint))
        return ErrorParts(self.value[block], own, joint)

    def correlated(self) -> np.ndarray | None:
        """Return the sum of `joint` and `shared`; None if there are no such errors."""
        return self.part(...).correlated(self.shared)

    def scale(self) -> np.ndarray | float:
        """Return the sum of all errors per element; 0.0 if there are no errors."""
        return self.part(...).scale(self.shared)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **options: Any
    ) -> Any:
        out = options.pop("out", None)
        rule = UFUNCS.get((ufunc, method))
        name = "" if method == "__call__" else f".{method}"
        result = _called(rule, f"numpy.{ufunc.__name__}{name}", inputs, options)
        return result if out is None else _written(out[0], result)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        out = kwargs.pop("out", None)
        name = f"{func.__module__}.{func.__name__}"
        result = _called(FUNCTIONS.get(func), name, args, kwargs)
        return result if out is None else _written(out, result)

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise _leaves("is converted to a NumPy array, which carries no error bounds")

    def __float__(self) -> float:
        raise _leaves("is converted to a Python number, which carries no error bound")

    __int__ = __index__ = __float__  # pyright: ignore[reportAssignmentType]

    def __bool__(self) -> bool:
        if self.is_exact and self.size == 1:
            return bool(_value(self))
        raise _leaves(
            "decides a branch of Python, and its errors may change the branch"
        )

    def __getitem__(self, key: Any) -> Any:
        key, doubt = _plain(key)
        result = moved(lambda x: x[key], self)
        if doubt is not None:
            more = np.where(doubt, np.inf, 0.0)
            result.joint = more if result.joint is None else result.joint + more
        elif np.shares_memory(result.value, self.value):
            result.origin = (self, key)
        return result

    def __setitem__(self, key: Any, new: Any) -> None:
        if self.is_rearranged:
            raise _leaves("is assigned to after it was reshaped or transposed")
        for pending in list(UNSETTLED.values()):  # each may depend on this array
            pending.settle()
        key, doubt = _plain(key)
        new = as_tracked(new, self.model)
        old = self.value[key].copy() if doubt is not None else None
        self._forget_sharing()
        self.value[key] = new.value
        scale = new.scale()
        if doubt is not None:
            scale = scale + np.where(doubt, np.abs(new.value - old), 0.0)
        if self.own is not None:
            self.own[key] = 0.0
        if self.joint is None and np.any(scale):
            self.joint = np.zeros(self.shape, np.float32)
        if self.joint is not None:
            self.joint[key] = scale
        if self.origin is not None:
            parent, place = self.origin
            parent[place] = self

    def _forget_sharing(self) -> None:
        """Move shared errors into `joint`, since assigned elements do not have them."""
        if self.shared:
            self.joint = np.asarray(self.correlated(), np.float32)
            self.shared = {}
        elif self.joint is not None and not self.joint.flags.writeable:
            self.joint = self.joint.copy()

    def astype(self, dtype: Any, **_: Any) -> Any:
        """Convert like NumPy's `astype`, with the rounding of a narrower format."""
        return _made(UFUNCS["astype"](self, np.dtype(dtype)))

    T = property(lambda self: moved(np.transpose, self))

    def __getattr__(self, name: str) -> Any:
        """Return the NumPy function `name` as a method of this array."""
        function = getattr(np, name, None)
        if name.startswith("_") or function is None or function not in FUNCTIONS:
            raise _no_rule(f"numpy.ndarray.{name}")
        if name in ("reshape", "transpose"):
            return lambda *args, **kw: function(self, _flat(args), **kw)
        return lambda *args, **kw: function(self, *args, **kw)


def _flat(args: tuple[Any, ...]) -> Any:
    if not args or args == (None,):
        return None
    return args[0] if len(args) == 1 and not isinstance(args[0], int) else args


def _plain(key: Any) -> tuple[Any, np.ndarray | None]:
    """Return the index `key` without errors, and a mask of its elements that may be
    wrong (None if no element may be)."""
    if not isinstance(key, Tracked):
        return key, None
    doubt = np.broadcast_to(np.asarray(key.scale()) > 0, key.shape)
    value = _value(key)
    value = np.ones_like(value) if value.dtype == bool else value
    return value, doubt if doubt.any() else None


def moved(function: Callable[[np.ndarray], np.ndarray], x: Any) -> Any:
    """Apply `function`, which only moves elements, to the values and errors of `x`."""
    if not isinstance(x, Tracked):
        return function(x)

    def of(array: np.ndarray | None) -> Any:
        return None if array is None else np.asarray(function(array))

    terms = {
        source: dataclasses.replace(term, scale=of(term.scale))
        for source, term in x.shared.items()
    }
    return Tracked(of(x.value), x.model, x.dtype, of(x.own), of(x.joint), terms)


def carrier_of(shape: tuple[int, ...]) -> np.dtype:
    """Return the dtype that holds the values of an array of this shape."""
    return np.dtype(np.float32 if math.prod(shape) > LARGE_ELEMENTS else np.float64)


def as_tracked(x: Any, model: ErrorModel) -> Tracked:
    """Return input or constant `x` as a tracked array, with the error of storing it."""
    if isinstance(x, Tracked):
        return x
    array = np.asarray(x)
    if array.dtype == object:
        raise _leaves(f"is combined with a {type(x).__name__}, which is no number")
    hold = np.copy if model.draw is None else model.draw.held
    if array.dtype.kind in "iub":  # `hold` copies: the reference may write to `array`
        return Tracked(hold(array), model, array.dtype)
    value = array.astype(carrier_of(array.shape))
    is_weak = isinstance(x, float) and not isinstance(x, np.generic)
    dtype = np.float16 if is_weak else array.dtype
    lost = _lost(value, array.dtype, model)
    if model.draw is None:
        return Tracked(value, model, dtype, None if lost is None else np.abs(lost))
    shared = {} if lost is None else {0: Shared(False, lost, "constants")}
    return _made(Tracked(hold(value), model, dtype, None, None, shared))


def _lost(value: np.ndarray, given: Any, model: ErrorModel) -> np.ndarray | None:
    """Return the errors of rounding `value` to `model.stored`; None if all are 0."""
    if given == np.float32 and model.stored.name == "float32":
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        stored = value.astype(get_format(model.stored.name).dtype).astype(value.dtype)
        lost = np.where((stored == value) | np.isnan(value), 0.0, stored - value)
    return lost.astype(np.float32) if lost.any() else None


def exact(values: Any, model: ErrorModel) -> Tracked:
    """Return `values` as a tracked array without errors."""
    array = np.asarray(values)
    return Tracked(array.astype(carrier_of(array.shape)), model)


def doubtful(
    values: np.ndarray, places: Any, model: ErrorModel
) -> Tracked | np.ndarray:
    """Return `values` with infinite errors where the mask `places` is True, else exact.
    Exact integers stay a NumPy array."""
    result = values if values.dtype.kind in "iub" else exact(values, model)
    if not np.any(places):
        return result
    bound = np.where(places, np.float32(np.inf), np.float32(0.0))
    joint = np.broadcast_to(bound, values.shape)
    value = result.value if isinstance(result, Tracked) else values
    return Tracked(value, model, result.dtype, None, joint)


def declared(*operands: Any) -> np.dtype:
    """Return the float dtype of a result of `operands`; only float arrays affect it."""
    arrays = Tracked | np.ndarray | np.generic
    dtypes = [x.dtype for x in operands if isinstance(x, arrays)]
    floats = [d for d in dtypes if d.kind not in "iub"]
    try:
        return np.result_type(*floats) if floats else np.dtype(np.float32)
    except TypeError:
        return max(floats, key=lambda d: d.itemsize)


def blocks(shape: tuple[int, ...], elements: int = BLOCK_ELEMENTS) -> Iterator[Any]:
    """Yield indices that cut an array into blocks of about `elements` elements."""
    if math.prod(shape) <= elements:
        yield ...
        return
    rests = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    axis = next(k for k, rest in enumerate(rests) if rest <= elements)
    step = max(1, elements // max(1, rests[axis]))
    for outer in np.ndindex(*shape[:axis]):
        for start in range(0, shape[axis], step):
            yield (*outer, slice(start, start + step))


def over_blocks(
    work: Callable[[Any], Any], shape: tuple[int, ...], elements: int = BLOCK_ELEMENTS
) -> list[Any]:
    """Return `work(block)` for each block of `shape`, computed by `in_threads`."""
    return in_threads(work, list(blocks(shape, elements)), _FEWEST_FOR_THREADS)


def in_threads(
    work: Callable[[Any], Any], todo: Sequence[Any], fewest: int = 2
) -> list[Any]:
    """Return `work(x)` for each x in `todo`; use threads for `fewest` items or more."""
    if len(todo) < fewest:
        return list(map(work, todo))
    # A thread lacks the caller's context, which has NumPy's error state.
    contexts = [contextvars.copy_context() for _ in todo]
    _BEFORE.append(_blas("get"))
    _blas("set", 1)
    try:
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
            return list(threads.map(lambda c, b: c.run(work, b), contexts, todo))
    finally:
        _blas("set", _BEFORE.pop())


def _blas(verb: str, *count: int) -> int:
    """Get or set OpenBLAS's number of threads; return 0 for any other BLAS. OpenBLAS's
    idle threads wait in a busy loop, which slows other threads down."""
    name = f"scipy_openblas_{verb}_num_threads64_"
    return getattr(_BLAS, name, lambda *_: 0)(*count)


def model_of(operands: Any) -> ErrorModel:
    """Return the error model of the first tracked operand."""
    return next(x.model for x in operands if isinstance(x, Tracked))


def run_by_run(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `rule` for each run that its arguments pack
    (`runs.py`), and packs the results."""

    @functools.wraps(rule)
    def asked(*args: Any, **named: Any) -> Any:
        model = model_of(args)
        if model.draw is None or not model.draw.count:
            return rule(*args, **named)
        runs = []
        for n in range(model.draw.count):
            own = (x.of_run(n) if isinstance(x, Tracked) else x for x in args)
            runs.append(rule(*own, **named))
        first = runs[0]
        if isinstance(first, Tracked):
            return first.in_runs(np.stack([x.value for x in runs], axis=-1), model)
        if not all(np.array_equal(first, other) for other in runs):
            raise RunsApartError(1)
        return first

    return asked


@run_by_run
def _value(x: Tracked) -> np.ndarray:
    return x.value


def _written(out: Any, result: Any) -> Any:
    if not isinstance(out, Tracked):
        raise _leaves("is written to a NumPy array, which carries no error bounds")
    out[...] = result
    return out


def _called(rule: Any, name: str, args: Any, named: Any) -> Any:
    if rule is None:
        raise _no_rule(name)
    try:
        _signature(rule).bind(*args, **named)
    except TypeError as problem:
        raise _no_rule(name, f", with these arguments ({problem}),") from None
    return _made(rule(*args, **named))


_signature = functools.cache(inspect.signature)


def _made(result: Any) -> Any:
    if not isinstance(result, Tracked) or result.model.draw is None:
        return result
    return result.model.draw.made(result)


def _no_rule(name: str, how: str = "") -> UnimplementedError:
    return UnimplementedError(
        f"the function{how} has no rule for bounds of errors",
        op=name,
        location=user_line(),
        remedy=f"use only functions that have such a rule, or {REMEDY}",
    )


def _leaves(what: str) -> InvalidProgramError:
    return InvalidProgramError(
        f"a result of the reference {what}",
        location=user_line(),
        remedy=f"keep to functions of NumPy on whole arrays, or {REMEDY}",
    )
