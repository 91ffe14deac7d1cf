"""The values that are in SBUF: a set with its bytes, which knows when they leave."""

from __future__ import annotations

from collections.abc import Iterable


class SbufContents(dict[int, int]):
    """Bytes of the values in SBUF, and of all together."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self._leaving: dict[int, list[int]] = {}

    def hold(self, value: int, size: int, last: int) -> None:
        """Takes a value in, until after unit `last`."""
        if value not in self:
            self[value] = size
            self.total += size
            self._leaving.setdefault(last, []).append(value)

    def let_go(self, value: int) -> int:
        """Takes a value out; its bytes."""
        size = self.pop(value)
        self.total -= size
        return size

    def expire(self, n: int) -> None:
        """Takes out what was there until after unit n."""
        for value in self._leaving.pop(n, ()):
            if value in self:
                self.let_go(value)

    def besides(self, values: Iterable[int]) -> int:
        """Bytes of all values in SBUF but these."""
        return self.total - sum(self.get(v, 0) for v in values)
