"""The unit roundoff of the coarsest format on which each value depends."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from neuronjax.diagnostics.faults.judgement import COARSE
from neuronjax.diagnostics.faults.perturbation import unit_of
from neuronjax.diagnostics.op_records import MOVING
from neuronjax.ir.instruction import Block
from neuronjax.ir.instruction_set import NcMatmul, NcMatmulMx, ScaleFromAmax
from neuronjax.ir.program import Op, Value
from neuronjax.ir.value_sources import ValueSources
from neuronjax.lowering.context import LoweredRegion


class Cast(NamedTuple):
    """A policy's cast of the operands of a contraction, such as a matmul.

    Attributes:
        format: the coarsest format to which an operand is cast.
        is_scaled: whether operands are first scaled to the range of the format.
        sums: the format of the contraction's partial sums.
    """

    format: str
    is_scaled: bool
    sums: str

    @property
    def unit(self) -> float:
        """Return the unit roundoff of `format`."""
        return unit_of(self.format)


_SCALED = (NcMatmulMx, ScaleFromAmax)


def contraction_casts(regions: Mapping[Block, LoweredRegion]) -> dict[Op, Cast]:
    """Return the coarsest cast of each contraction's operands in lowered `regions`."""
    casts: dict[Op, Cast] = {}
    written = {
        buffer.number: i.write_format
        for block in regions
        for i in block.instructions
        if i.write_format is not None
        for buffer in i.results
    }
    for block, lowered in regions.items():
        bounds = itertools.pairwise((0, *lowered.ends))
        for op, (start, end) in zip(lowered.region.ops, bounds, strict=True):
            span = block.instructions[start:end]
            scaled = any(isinstance(i, _SCALED) for i in span)
            found = [
                Cast(
                    written.get(view.buffer.number, np.dtype(view.type.dtype).name),
                    scaled,
                    np.dtype(i.results[0].type.dtype).name,
                )
                for i in span
                if isinstance(i, NcMatmul | NcMatmulMx)
                for view in i.operands
            ]
            if found:
                casts[op] = max(found, key=lambda cast: cast.unit)
    return casts


#: Share of a cast's roundoff that counts besides the effect of perturbed operands. In 8
#: bits or fewer, which also have a small range, all of the roundoff counts.
OF_CAST = 0.5


def _left_of(cast: Cast) -> float:
    unit = cast.unit
    return unit if unit > COARSE else OF_CAST * unit


#: An array that was rounded n times has an error of about n roundoffs. With these two
#: factors, `judgement.OF_ROUNDOFF` excuses 1 + 1.5 n roundoffs, at most 6.
OF_NO_ROUNDING = 1 / 6
OF_EACH_ROUNDING = 1 / 4
_MOST = (1 - OF_NO_ROUNDING) / OF_EACH_ROUNDING


def path_units(
    graph: ValueSources, contractions: Mapping[Op, Cast]
) -> dict[Value, float]:
    """Return, for each value, the roundoff of the coarsest format on which the value
    depends; in more than 8 bits, only a part of the roundoff if roundings are few."""
    own = {
        value: max(
            unit_of(value.type.dtype),
            _left_of(contractions[maker]) if maker in contractions else 0.0,
        )
        for value, maker in graph.makers.items()
    }
    for value in (*graph.readers, *graph.sources):
        own.setdefault(value, unit_of(value.type.dtype))
    rounds = {
        value: (own[value], 0.0 if maker.name in MOVING else 1.0)
        for value, maker in graph.makers.items()
    }
    way = {value: (unit, 0.0) for value, unit in own.items()} | rounds
    left = list(way)
    while left:
        value = left.pop()
        unit, times = way[value]
        for reader in graph.readers.get(value, ()):
            rounds_again = rounds.get(reader) == (unit, 1.0)
            counted = min(_MOST, times + rounds_again)
            if (unit, counted) > way[reader]:
                way[reader] = unit, counted
                left.append(reader)
    return {
        v: unit if unit > COARSE else unit * (OF_NO_ROUNDING + OF_EACH_ROUNDING * n)
        for v, (unit, n) in way.items()
    }
