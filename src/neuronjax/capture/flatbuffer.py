"""A strict reader of flatbuffers: every offset is checked, and there is a budget.

Only what `capture.exported` needs of the format (flatbuffers.dev, "Internals"): tables,
vectors, strings and unsigned scalars, little-endian. A read outside the buffer, a text
that is not UTF-8, more tables than the budget or more bytes of texts than a few times
the file's, which offsets to one place can ask for, is an InvalidProgramError.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NoReturn

from neuronjax.errors import InvalidProgramError

# A table takes some microseconds to read: well below a second for all.
MOST_TABLES = 200_000
# Texts may share their bytes; those of JAX are short, and repeated a few times.
TEXT_RATIO, TEXT_BYTES = 16, 1 << 20


def malformed(what: str) -> NoReturn:
    """Refuses the buffer."""
    raise InvalidProgramError(
        f"this jax.export artifact is malformed, or was cut off: {what}",
        remedy="write it again: jax.export.export(...)(...).serialize()",
    )


@dataclass
class FlatBuffer:
    """The bytes, and how many tables may still be read."""

    data: bytes
    budget: int = field(default=MOST_TABLES)
    text_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.text_bytes = TEXT_RATIO * len(self.data) + TEXT_BYTES

    def root(self) -> Table:
        """The table that the first offset points to."""
        return Table(self, self.offset(0))

    def unsigned(self, at: int, width: int) -> int:
        """A little-endian unsigned integer of `width` bytes."""
        return int.from_bytes(self.slice(at, width), "little")

    def offset(self, at: int) -> int:
        """Where the relative offset at `at` points; always forward."""
        return at + self.unsigned(at, 4)

    def slice(self, at: int, length: int) -> bytes:
        """Takes so many bytes."""
        if at < 0 or at + length > len(self.data):
            malformed(f"offset {at} + {length} is beyond its {len(self.data)} bytes")
        return self.data[at : at + length]

    def spend(self) -> None:
        """Counts a table."""
        self.budget -= 1
        if self.budget < 0:
            malformed(f"it has more than {MOST_TABLES} tables")

    def text(self, at: int, length: int) -> str:
        """A string of so many bytes, which are counted."""
        self.text_bytes -= length
        if self.text_bytes < 0:
            malformed("its texts have many times the bytes that the file has")
        try:
            return self.slice(at, length).decode()
        except UnicodeDecodeError:
            malformed("a text is not UTF-8")


class Table:
    """One table: fields by slot number, as in the schema, from 0."""

    def __init__(self, buffer: FlatBuffer, at: int) -> None:
        buffer.spend()
        self._buffer = buffer
        self._at = at
        (back,) = struct.unpack("<i", buffer.slice(at, 4))
        self._vtable = at - back
        self._vtable_bytes = buffer.unsigned(self._vtable, 2)

    def _field(self, slot: int) -> int | None:
        """Where a field is, or None where it has its default."""
        entry = 4 + 2 * slot
        if entry + 2 > self._vtable_bytes:
            return None
        relative = self._buffer.unsigned(self._vtable + entry, 2)
        return self._at + relative if relative else None

    def has(self, slot: int) -> bool:
        """Say whether a field stands in the buffer."""
        return self._field(slot) is not None

    def unsigned(self, slot: int, width: int) -> int:
        """An unsigned scalar of `width` bytes, 0 by default."""
        at = self._field(slot)
        return 0 if at is None else self._buffer.unsigned(at, width)

    def table(self, slot: int) -> Table | None:
        """Reads a nested table."""
        at = self._field(slot)
        return None if at is None else Table(self._buffer, self._buffer.offset(at))

    def _vector(self, slot: int, width: int) -> tuple[int, int]:
        """Where a vector's elements begin, and how many fit the buffer."""
        at = self._field(slot)
        if at is None:
            return 0, 0
        start = self._buffer.offset(at)
        count = self._buffer.unsigned(start, 4)
        if start + 4 + count * width > len(self._buffer.data):
            malformed(f"a vector of {count} elements does not fit")
        return start + 4, count

    def bytes(self, slot: int) -> bytes:
        """A vector of bytes."""
        start, count = self._vector(slot, 1)
        return self._buffer.slice(start, count)

    def text(self, slot: int) -> str:
        """Reads a string."""
        return self._buffer.text(*self._vector(slot, 1))

    def integers(self, slot: int, width: int) -> tuple[int, ...]:
        """A vector of unsigned integers."""
        start, count = self._vector(slot, width)
        read = self._buffer.unsigned
        return tuple([read(start + width * i, width) for i in range(count)])

    def tables(self, slot: int) -> list[Table]:
        """A vector of tables."""
        start, count = self._vector(slot, 4)
        targets = [self._buffer.offset(start + 4 * i) for i in range(count)]
        return [Table(self._buffer, target) for target in targets]

    def texts(self, slot: int) -> tuple[str, ...]:
        """A vector of strings."""
        start, count = self._vector(slot, 4)
        buffer = self._buffer
        found = []
        for i in range(count):
            at = buffer.offset(start + 4 * i)
            found.append(buffer.text(at + 4, buffer.unsigned(at, 4)))
        return tuple(found)
