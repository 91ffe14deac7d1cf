"""Numbers that stand for minus infinity: what a mask puts where no number is meant.

Attention sets the scores that it leaves out to -1e9; beside these an error of the
others is nothing, and nothing comes of them. They are left out of the figures, as Inf
is. A large number that is added to the best ones is none of them.
"""

from __future__ import annotations

import numpy as np

from neuronjax.diagnostics.faults.shares import Seen, Share, wide
from neuronjax.diagnostics.op_records import CONSTANT
from neuronjax.ir.program import Value
from neuronjax.ir.value_sources import ValueSources

#: The smallest number that people mask with.
LEAST = 1e4
#: So many times the others it is no number among them.
TIMES = 1e3
_KEEPS = (
    CONSTANT
    | {"func.call", "stablehlo.composite"}
    | {
        f"stablehlo.{name}"
        for name in (
            "add subtract multiply divide maximum minimum select negate abs".split()
        )
    }
)


def masked_values(graph: ValueSources) -> frozenset[Value]:
    """What a mask may be in: floats that a constant was chosen for, or multiplied by,
    and what sums and movement make of these."""
    found = {
        value
        for value, maker in graph.makers.items()
        if maker.name in ("stablehlo.select", "stablehlo.multiply")
        and value.type.dtype.kind not in "iub"
        and any(graph.is_constant(v, CONSTANT) for v in maker.operands)
    }

    def keeps(_: Value, reader: Value) -> bool:
        maker = graph.makers.get(reader)
        is_kept = maker is None or maker.name in _KEEPS
        return is_kept and reader.type.dtype.kind not in "iub"

    return frozenset(graph.ahead(found, keeps))


def unmasked(seen: Seen, share: Share) -> Seen:
    """The elements that are no mask; all of them where none or only such are."""
    if share.largest < LEAST:
        return seen
    reference = wide(seen.reference)
    high = reference < -share.largest / 2
    actual = wide(seen.actual)
    high &= np.isfinite(actual) & (actual < -share.largest / 2)
    rest = np.abs(reference[~high])
    if not rest.size or rest.max() * TIMES > share.largest:
        return seen
    reference = seen.reference[~high]
    perturbed = tuple(
        reference if p is seen.reference else p[~high] for p in seen.perturbed
    )
    return Seen(seen.dtype, reference, seen.actual[~high], perturbed)
