"""Memory regions of the NKI language, and `NKIObject`."""

from __future__ import annotations

import enum
import inspect
from typing import Any


class NKIObject:
    """Base class of kernel data classes and configuration objects.

    The default `__init__` sets the annotated fields, in order, with their defaults or
    None, and calls `__post_init__`. Equality is structural (NKI Language Guide, "Class
    Support"). An object that is a kernel argument may contain arrays and static values.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        every = [inspect.get_annotations(c) for c in reversed(type(self).__mro__)]
        names = list(dict.fromkeys(name for fields in every for name in fields))
        if len(args) > len(names):
            raise TypeError(
                f"{type(self).__name__}() takes {len(names)} fields, {len(args)} given"
            )
        given = dict(zip(names, args, strict=False)) | kwargs
        for name in names:
            setattr(self, name, given.pop(name, getattr(type(self), name, None)))
        for name, value in given.items():
            setattr(self, name, value)
        self.__post_init__()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make None the default of a field that has no default, also for @dataclass."""
        super().__init_subclass__(**kwargs)
        fields = dict(inspect.get_annotations(cls))
        for name in fields:
            if not hasattr(cls, name):
                setattr(cls, name, None)
        # A constant of the class is a field too, but a method is not.
        constant = bool | int | float | str | tuple | enum.Enum | None
        for name, value in list(vars(cls).items()):
            if not name.startswith("__") and isinstance(value, constant):
                fields.setdefault(name, Any)
        cls.__annotations__ = fields

    def __post_init__(self) -> None:
        """Do nothing; the initializer calls this at its end."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(type(self))  # fields may change, so only the class is hashed


class MemoryRegion(enum.Enum):
    """The memory in which a tensor lies."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"
    hbm = "private_hbm"  # an alias

    def __str__(self) -> str:
        return self.value


_HBM = frozenset({"private_hbm", "shared_hbm"})


def region_name(buffer: Any) -> str:
    """Return the name of a MemoryRegion or str; "hbm" is "private_hbm"."""
    name = buffer.value if isinstance(buffer, MemoryRegion) else str(buffer)
    return "private_hbm" if name == "hbm" else name


def is_hbm(buffer: Any) -> bool:
    """Return whether a buffer is any kind of HBM."""
    return region_name(buffer) in _HBM


def is_psum(buffer: Any) -> bool:
    return region_name(buffer) == "psum"


def is_sbuf(buffer: Any) -> bool:
    return region_name(buffer) == "sbuf"


def is_on_chip(buffer: Any) -> bool:
    """Return whether a buffer is SBUF or PSUM."""
    return is_sbuf(buffer) or is_psum(buffer)
