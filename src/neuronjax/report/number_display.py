"""Tables of number formats, and of MX and sparse arrays, for notebooks and terminals.

The title of an array's table has its format and size. If the array has values (it is no
tracer), the first blocks or groups are drawn. `formats` has all formats by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from rich.console import Group, RenderableType
from rich.text import Text

from neuronjax.numerics.float_format import (
    FORMATS,
    INTEGERS,
    FloatFormat,
    IntFormat,
    get_number_format,
)
from neuronjax.numerics.microscaling import BLOCK_SIZE, MX_FORMATS, MXArray, MXFormat
from neuronjax.numerics.sparsity import SparseArray
from neuronjax.report.html import FIXED
from neuronjax.report.tables import NAME, NUMBER, WORD, Displayed, Drawing, new_table

_BLOCKS = 6  # drawn blocks of an MX array
_ELEMENTS = 8  # drawn elements of a block
_ROWS = 8  # drawn rows of a sparse array
_GROUP_COLUMNS = 60  # characters for the groups of a row
_DRAWN_BYTES = 1 << 26  # larger arrays are not copied to the host


class Formats(Displayed, Mapping[str, FloatFormat | IntFormat | MXFormat]):
    """Every number format of the engines, by name: `nj.formats["float8_e4m3"]`.

    Keys are the names of `ml_dtypes`, "tfloat32", and those of the MX formats."""

    def __getitem__(self, name: Any) -> FloatFormat | IntFormat | MXFormat:
        """Return the number format with the name or dtype `name`.

        Raises:
            InvalidProgramError: no such format; the message lists the nearest names.
        """
        if name in MX_FORMATS:
            return MX_FORMATS[name]
        return get_number_format(name)

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def __iter__(self) -> Iterator[str]:
        return iter((*FORMATS, *MX_FORMATS, *INTEGERS))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return f"<neuronjax.formats: {', '.join(self)}>"

    def __rich__(self) -> Group:
        limits = ("S E M", "largest", "least normal", "least", "1 to next")
        floats = new_table(
            "Float formats; S sign, E exponent, M mantissa bits",
            {"name": NAME} | dict.fromkeys(limits, NUMBER) | {"Inf, NaN": WORD},
            (
                (
                    fmt.name,
                    f"{int(fmt.signed)} {fmt.exponent_bits} {fmt.mantissa_bits}",
                    _number(fmt.max_finite),
                    _power(fmt.min_normal),
                    _power(fmt.min_subnormal),
                    _power(fmt.eps),
                    _specials(fmt),
                )
                for fmt in FORMATS.values()
            ),
        )
        bits = "bits per element, with the scale"
        blocks = new_table(
            f"Block formats: {BLOCK_SIZE} elements share an E8M0 scale",
            {"name": NAME, "elements": WORD, bits: NUMBER},
            (
                (block.name, block.element.name, _number(_block_bits(block)))
                for block in MX_FORMATS.values()
            ),
        )
        return Group(floats, blocks)


formats = Formats()


def format_table(fmt: FloatFormat) -> Group:
    """Return a table of a format's bits and limits."""
    bits = "S" * fmt.signed, "E" * fmt.exponent_bits, "M" * fmt.mantissa_bits
    facts: dict[str, RenderableType] = {
        "bits": " ".join([*filter(None, bits), f"({fmt.width})"]),
        "exponent bias": str(fmt.bias),
        "largest": _with_power(fmt.max_finite),
        "smallest normal": _with_power(fmt.min_normal),
    }
    if fmt.has_zero:
        facts["smallest"] = _with_power(fmt.min_subnormal)
    facts["step from 1 to the next"] = _with_power(fmt.eps)
    facts["Inf, NaN"] = _specials(fmt)
    facts["kept as"] = str(fmt.dtype)
    return _facts(fmt.name, facts)


def _facts(title: str, facts: Mapping[str, RenderableType]) -> Group:
    columns = {"fact": WORD, "value": {"style": "bold"}}
    return Group(new_table(title, columns, facts.items(), show_header=False))


def _specials(fmt: FloatFormat) -> str:
    present = {"Inf": fmt.has_inf, "NaN": fmt.nan != "none"}
    return ", ".join(name for name, there in present.items() if there) or "none"


def _block_bits(block: MXFormat) -> float:
    return block.element.width + 8 / BLOCK_SIZE


def _power(value: float) -> str:
    significand, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if significand == 0.5 else _number(value)


def _with_power(value: float) -> str:
    power, number = _power(value), _number(value)
    return number if power == number or value == 1 else f"{number} = {power}"


def _number(value: float) -> str:
    return f"{value:.7g}" if 1e-4 < abs(value) < 1e6 or not value else f"{value:.4g}"


def _mx_format_table(block: MXFormat) -> Group:
    facts = {
        "a block": f"{BLOCK_SIZE} neighbours along the contraction axis",
        "elements": block.element.name,
        "scale": "float8_e8m0fnu, a power of two: 2^-127 to 2^127",
        "bits per element": _number(_block_bits(block)),
        "largest value": f"{_number(block.element.max_finite)} × the scale",
    }
    return _facts(block.name, facts)


def _mx_table(array: MXArray) -> RenderableType:
    if not _is_drawable(array.elements, array.scales) or not array.elements.size:
        return Text(repr(array))
    bits = f"{array.bits_per_element:.4g} bits per element"
    times = f"{4 * array.elements.size / array.nbytes:.3g} times smaller than float32"
    rows = new_table(
        f"{array.format.name}, shape {array.shape}, blocks of {array.block_size} along "
        f"axis {array.axis}: {bits}, {array.nbytes:,} bytes, {times}",
        {"block": WORD, "scale": NUMBER, "× its elements": {"style": FIXED} | WORD},
    )
    size = array.block_size
    lines = _last(array.elements, array.axis)
    scales = _last(array.scales, array.axis)
    for index in list(np.ndindex(scales.shape))[:_BLOCKS]:
        block = lines[index[:-1]][index[-1] * size : (index[-1] + 1) * size]
        shown = " ".join(f"{x:>5.3g}" for x in block[:_ELEMENTS].astype(np.float64))
        more = " ..." if len(block) > _ELEMENTS else ""
        code = int(np.asarray(scales[index]).view(np.uint8))
        scale = "NaN" if code == 255 else f"2^{code - 127}"
        rows.add_row(_place(index, array.axis), scale, shown + more)
    if scales.size > _BLOCKS:
        rows.add_row(f"{scales.size - _BLOCKS:,} more", "", "")
    return rows


def _sparse_table(array: SparseArray) -> RenderableType:
    if not _is_drawable(array.values, array.tags) or not array.values.size:
        return Text(repr(array))
    dense = math.prod(array.shape) * array.dtype.itemsize
    kept, group = array.pattern.kept, array.pattern.group
    rows = new_table(
        f"{array.pattern} {array.dtype}, shape {array.shape}, sparse along axis "
        f"{array.axis}: {array.nbytes:,} bytes with tags, "
        f"{dense / array.nbytes:.2f} times smaller than dense",
        {"line": WORD}
        | {f"which {kept} of every {group} are kept": {"style": FIXED} | WORD},
    )
    tags = _last(array.tags, array.axis)
    lines = list(np.ndindex(tags.shape[:-1]))
    for index in lines[:_ROWS]:
        rows.add_row(_place((*index, ":"), array.axis), _groups(tags[index], array))
    if len(lines) > _ROWS:
        rows.add_row(f"{len(lines) - _ROWS:,} more", "")
    return rows


def _groups(tags: np.ndarray, array: SparseArray) -> str:
    """Return a row's first groups: a square for a kept element, a dot for another."""
    kept, group = array.pattern.kept, array.pattern.group
    count = _GROUP_COLUMNS // (group + 1)
    drawn = ""
    for number, places in enumerate(tags.reshape(-1, kept)[:count]):
        length = min(group, array.length - number * group)
        drawn += "".join("■" if n in places else "·" for n in range(length)) + " "
    return drawn if array.length <= count * group else f"{drawn}..."


def _is_drawable(*arrays: Any) -> bool:
    return all(
        isinstance(x, jax.Array | np.ndarray)
        and not isinstance(x, Tracer)
        and x.ndim > 0
        and x.nbytes <= _DRAWN_BYTES
        and getattr(x, "is_fully_addressable", True)
        for x in arrays
    )


def _last(array: Any, axis: int) -> np.ndarray:
    return np.moveaxis(np.asarray(array), axis, -1)


def _place(index: tuple[Any, ...], axis: int) -> str:
    """Return an index as text, in the order of the axes. In `index` the position along
    `axis` is last."""
    *others, own = index
    others.insert(len(others) + 1 + axis, own)
    return f"[{', '.join(map(str, others))}]"


_TABLES: dict[type, Callable[[Any], RenderableType]] = {
    FloatFormat: format_table,
    IntFormat: lambda fmt: _facts(
        fmt.name, {"bits": str(fmt.width), "range": f"{fmt.min:,} to {fmt.max:,}"}
    ),
    MXFormat: _mx_format_table,
    MXArray: _mx_table,
    SparseArray: _sparse_table,
}


def display_of(value: Any) -> Drawing:
    """Return the drawing of a value, for `numerics.shown`."""
    return Drawing(_TABLES[type(value)](value))
