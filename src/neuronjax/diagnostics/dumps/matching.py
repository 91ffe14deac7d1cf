"""Names of a program's values, and the saved tensors that match them."""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from neuronjax.diagnostics.op_records import MOVING
from neuronjax.diagnostics.parallel_runs import OpPath
from neuronjax.errors import InvalidProgramError
from neuronjax.ir.name_stack import read_name_stack
from neuronjax.ir.program import TOP, Op, Program, Region, Value

#: The calls that lead to a value, and the value.
Key = tuple[tuple[Op, ...], Value]
_SEPARATORS = re.compile(r"[./:]+")
#: Endings that frameworks append to a module's name when they save its output.
_ENDINGS = ("output", "output_0", "out")


@dataclass(eq=False)
class NamedValue:
    """A value of the program that is computed once.

    Attributes:
        key: the value and the calls that lead to it.
        path: the op that makes the value; None for an argument.
        names: names of the value; reports show the first.
        computes: whether the op computes; False if it only moves numbers.
    """

    key: Key
    path: OpPath | None
    names: list[str] = field(default_factory=list)
    computes: bool = True

    @property
    def value(self) -> Value:
        return self.key[1]


def normal(name: str) -> tuple[str, ...]:
    """Return a name in parts: "layers.0::mlp/output" is ("layers", "0", "mlp")."""
    parts = [p for p in _SEPARATORS.split(name.strip().lower()) if p]
    while len(parts) > 1 and parts[-1] in _ENDINGS:
        parts.pop()
    return tuple(parts)


def named_values(program: Program, outputs: Sequence[str]) -> list[NamedValue]:
    """Return every value that is computed once, in order of execution, with its names.

    Arguments are named as in the program, outputs by their paths. Other values are
    named by module and op: "mlp/dot_general", and "mlp/dot_general.1" for the second
    value of this name; or by the op alone if the program has no modules. The last value
    that a module computes also has the name of the module."""
    body = program.entry.body
    pairs = zip(body.arguments, program.argument_names, strict=True)
    found = [
        NamedValue(((), value), None, [name or f"argument {n}"])
        for n, (value, name) in enumerate(pairs)
    ]
    made = list(_made(program, body, ()))
    known = {value.key: value for value in made}
    for value, name in zip(body.results, outputs, strict=True):
        if ((), value) in known:
            known[(), value].names.insert(0, name)
    _name_by_module(made)
    return found + made


def _made(
    program: Program, region: Region, calls: tuple[Op, ...]
) -> Iterator[NamedValue]:
    for op in region.ops:
        callee = op.callee
        if callee is not None:
            yield from _made(program, program.functions[callee].body, (*calls, op))
        path = OpPath(calls, op)
        for value in op.results:
            computes = op.name not in MOVING and callee is None
            yield NamedValue((calls, value), path, [], computes)


def _name_by_module(values: Sequence[NamedValue]) -> None:
    counts: Counter[str] = Counter()
    last: dict[str, NamedValue] = {}
    for value in values:
        assert value.path is not None
        location, op = value.path.location, value.path.op.name.rpartition(".")[2]
        # A module's name alone means the forward pass, not "mlp (backward)".
        module = location.part if location.phase == "forward" else location.label
        plain = [] if read_name_stack(value.path.scope).names else [op]
        for name in dict.fromkeys([*plain, op if module == TOP else f"{module}/{op}"]):
            number = counts[name]
            counts[name] += 1
            value.names.append(f"{name}.{number}" if number else name)
        if value.computes and module != TOP:
            last[module] = value
    for module, value in last.items():
        value.names.append(module)


# -- tensors and values ---------------------------------------------------------------

_SHOWN = 3


@dataclass(frozen=True)
class Match:
    """A saved tensor and its value, matched as "given", or by "name" or "shape"."""

    tensor: str
    value: NamedValue
    array: np.ndarray
    how: str


@dataclass(frozen=True)
class Unmatched:
    """A saved tensor that is no value of the program, and the reason."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    why: str


def matched(
    tensors: Mapping[str, np.ndarray],
    values: Sequence[NamedValue],
    given: Mapping[str, str],
) -> tuple[list[Match], list[Unmatched]]:
    """Return the matches (as given, by name, or by a unique shape and dtype), and the
    tensors without a match.

    Raises:
        InvalidProgramError: `given` names a missing tensor or value, or pairs different
            shapes.
    """
    pairs = {t: (_given(t, n, tensors, values), "given") for t, n in given.items()}
    reasons: dict[str, str] = {}
    for tensor, array in tensors.items():
        if tensor in pairs:
            continue
        candidates = _by_name(normal(tensor), values)
        fitting = [v for v in candidates if _fits(array, v)]
        if len(fitting) == 1:
            pairs[tensor] = (fitting[0], "name")
        elif fitting:
            reasons[tensor] = f"its name fits several values: {_listed(fitting)}"
        elif candidates:
            shapes = ", ".join(str(v.value.type) for v in candidates[:_SHOWN])
            named = candidates[0].names[0]
            reasons[tensor] = f"its name fits {named}, which is {shapes}"
    _by_shape(tensors, values, pairs, reasons)
    matches = _once_each(tensors, pairs, reasons)
    left = [
        Unmatched(t, x.shape, x.dtype.name, reasons.get(t, "no value has this name"))
        for t, x in tensors.items()
        if t not in {m.tensor for m in matches}
    ]
    return matches, left


def _given(
    tensor: str,
    name: str,
    tensors: Mapping[str, np.ndarray],
    values: Sequence[NamedValue],
) -> NamedValue:
    if tensor not in tensors:
        raise InvalidProgramError(
            f"names has {tensor!r}, which is not in the dump",
            remedy=f"the dump has {_near(tensor, list(tensors))}",
        )
    matching = [v for v in values if name in v.names]
    if not matching:
        known = [n for v in values for n in v.names]
        raise InvalidProgramError(
            f"names maps {tensor!r} to {name!r}, which is no value of the program",
            remedy=f"the program has {_near(name, known)}",
        )
    if not _fits(tensors[tensor], matching[0]):
        raise InvalidProgramError(
            f"{tensor!r} has shape {tensors[tensor].shape}, {name!r} is "
            f"{matching[0].value.type}",
            remedy="save the tensor with the program's shape",
        )
    return matching[0]


def _near(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, cutoff=0.3)
    return ", ".join(near or known[:_SHOWN])


def _listed(values: Sequence[NamedValue]) -> str:
    more = ", ..." if len(values) > _SHOWN else ""
    return ", ".join(v.names[0] for v in values[:_SHOWN]) + more


def _fits(array: np.ndarray, value: NamedValue) -> bool:
    return array.shape == value.value.type.shape


def _by_name(name: tuple[str, ...], values: Sequence[NamedValue]) -> list[NamedValue]:
    """Return only the value called `name`; if there is none, the values whose name ends
    in `name`, or is the end of `name`."""
    ends: list[NamedValue] = []
    for value in values:
        for own in map(normal, value.names):
            if own == name:
                return [value]
            # "mlp/add.1" is the name of the second of several ops in a module.
            is_second = len(own) > 1 and own[-1].isdigit()
            if _is_end(name, own) or (is_second and _is_end(name, own[:-1])):
                ends.append(value)
                break
    return ends


def _is_end(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    short, long = sorted((a, b), key=len)
    return bool(short) and long[len(long) - len(short) :] == short


def _by_shape(
    tensors: Mapping[str, np.ndarray],
    values: Sequence[NamedValue],
    pairs: dict[str, tuple[NamedValue, str]],
    reasons: dict[str, str],
) -> None:
    """Add to `pairs` the other tensors and values whose shape and dtype are unique."""
    taken = {id(value) for value, _ in pairs.values()}
    kinds: dict[tuple, list[NamedValue]] = defaultdict(list)
    for value in values:
        if value.computes and id(value) not in taken:
            kinds[value.value.type.shape, value.value.type.dtype.name].append(value)
    alike: dict[tuple, list[str]] = defaultdict(list)
    for tensor, array in tensors.items():
        if tensor not in pairs and tensor not in reasons and array.ndim:
            alike[array.shape, array.dtype.name].append(tensor)
    for kind, names in alike.items():
        candidates = kinds.get(kind, [])
        if len(names) == len(candidates) == 1:
            pairs[names[0]] = (candidates[0], "shape")
        elif candidates:
            for tensor in names:
                reasons[tensor] = (
                    f"no unique match: its shape and dtype fit {_listed(candidates)}"
                )


def _once_each(
    tensors: Mapping[str, np.ndarray],
    pairs: Mapping[str, tuple[NamedValue, str]],
    reasons: dict[str, str],
) -> list[Match]:
    """Return one match per value; `reasons` gets further tensors of the same value."""
    owners: dict[int, str] = {}
    matches = []
    for tensor, (value, how) in pairs.items():
        owner = owners.setdefault(id(value), tensor)
        if owner == tensor:
            matches.append(Match(tensor, value, tensors[tensor], how))
        else:
            reasons[tensor] = f"{value.names[0]} is already matched with {owner!r}"
    return matches
