"""`record`: a dataclass for what is made by the hundred thousand.

A frozen dataclass sets each of its fields by a call, so that one of 16 fields takes
three times as long to make. These are frozen for the type checker alone, which reads
every line of the package and refuses an assignment.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(*, eq: bool = True, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """A decorator: a dataclass with slots whose fields nothing assigns to.

    Args:
        eq: whether equal fields make it equal; otherwise it is compared by identity.
        kw_only: whether its fields are given by name.
    """
    return dataclass(slots=True, eq=eq, unsafe_hash=eq, kw_only=kw_only)


def changed(value: T, **fields: Any) -> T:
    """What `dataclasses.replace` returns of a record, which asks for every field by its
    name."""
    names, read = _fields(type(value))
    return type(value)(**dict(zip(names, read(value), strict=True), **fields))


@functools.cache
def _fields(cls: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    return cls.__slots__, attrgetter(*cls.__slots__)
