"""Large negative numbers that masks use as minus infinity.

Attention sets masked scores to about -1e9. Beside such numbers the errors of all other
scores are negligible, yet only the other scores matter. So masked elements are left out
of the error, like Inf. Large positive numbers are no masks.
"""

from __future__ import annotations

import numpy as np

from neuronjax.diagnostics.faults.shares import Seen, Share, wide
from neuronjax.diagnostics.op_records import CONSTANT
from neuronjax.ir.program import Value
from neuronjax.ir.value_sources import ValueSources

#: Numbers of smaller magnitude are never taken for masks.
LEAST = 1e4
#: A mask is at least this many times as large as every other number.
TIMES = 1e3
_OPS = "add subtract multiply divide maximum minimum select negate abs composite"
_KEEPS = CONSTANT | {"func.call"} | {f"stablehlo.{name}" for name in _OPS.split()}


def masked_values(graph: ValueSources) -> frozenset[Value]:
    """Return the float values that may contain a mask: results of a select or product
    with a constant, and sums, products, maxima and minima of such results."""
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
    """Return `seen` without masked elements; unchanged if no mask is found."""
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
