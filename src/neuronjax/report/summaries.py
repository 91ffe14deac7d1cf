"""Results as plain data: complete for JSON, or a few scalars for a logger."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

Scalar = str | int | float | bool


class Summarised:
    """A mix-in for classes of results, which define `as_dict`."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; {} for results that are only displayed."""
        return {}

    def to_json_dict(self) -> dict[str, Any]:
        """Return `as_dict`."""
        return self.as_dict()

    def to_json(self, indent: int | None = 2) -> str:
        """Return `as_dict` as JSON, in one line if `indent` is None."""
        return json.dumps(self.as_dict(), indent=indent)

    def summary(self) -> dict[str, Scalar]:
        """Return one flat dict of scalars, for a logger: `wandb.log(found.summary())`.

        A nested figure is named "metrics/mfu_estimated_percent", a figure of an output
        "outputs/grads/w/rms". Of other tables, only the number of rows is given."""
        return dict(_scalars("", self.as_dict()))


def _scalars(name: str, value: Any) -> Iterable[tuple[str, Scalar]]:
    inner: dict[str, Any] | None = None
    if isinstance(value, list | tuple):
        rows = {r["path"]: r for r in value if isinstance(r, Mapping) and "path" in r}
        inner = rows or None
    elif isinstance(value, Mapping):
        is_table = any(isinstance(row, Mapping) for row in value.values())
        inner = None if name and is_table else {**value}
    if inner is not None:
        for key, held in inner.items():
            if key != "path":
                yield from _scalars(f"{name}/{key}" if name else key, held)
    elif isinstance(value, Scalar):
        yield name, value
    elif value is not None:
        yield name or "rows", len(value)
