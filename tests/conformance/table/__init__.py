"""The conformance table: rows by family, what is known to fail, what has no row."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping

from tests.conformance.table.case import Case

#: Family, a file here -> `make test` takes every so-manieth row, `make slow` the
#: others. Numbers are odd, so that the rows taken differ from one dtype to the next.
SHARES: Mapping[str, int] = {
    "elementwise": 7,
    "conversion": 3,
    "contraction": 17,
    "reduction": 11,
    "windows": 13,
    "indexing": 9,
    "movement": 7,
    "sorting": 9,
    "control_flow": 7,
    "random_bits": 11,
    "special_functions": 5,
    "complex_numbers": 7,
    "fourier": 5,
    "linear_algebra": 9,
}


def _rows(family: str, share: int) -> Iterator[Case]:
    """The file's rows, named "family/row", slow but for its share."""
    cases = importlib.import_module(f"{__name__}.{family}").CASES
    for index, case in enumerate(cases):
        slow = case.slow or index % share != 0
        yield dataclasses.replace(case, name=f"{family}/{case.name}", slow=slow)


FAMILIES: Mapping[str, tuple[Case, ...]] = {
    family: tuple(_rows(family, share)) for family, share in SHARES.items()
}

#: Row -> what its failure says. An entry is a defect, a decision against the op, or an
#: op that is not there yet.
KNOWN: Mapping[str, str] = {
    f"linear_algebra/{name}-float32": "no NeuronCore has"
    for name in ("qr", "eigvalsh", "svd", "lstsq", "pinv", "matrix_norm")
}

_REFUSED = "refused by decision"
_DYNAMIC = "refused by decision: takes a shape that is known only at run time"
_DEVICES = "of several devices"
_INTERNAL = "made by decoding, from the op of the same name"
_PRIMITIVE = "no form of it that both versions of JAX write"


def _each(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


#: Op with a lowering rule -> why no row has it.
NOT_IN_TABLE: Mapping[str, str] = {
    **_each(
        _DYNAMIC,
        "stablehlo.dynamic_broadcast_in_dim stablehlo.dynamic_conv"
        " stablehlo.dynamic_gather stablehlo.dynamic_iota stablehlo.dynamic_pad"
        " stablehlo.dynamic_reshape stablehlo.real_dynamic_slice"
        " stablehlo.set_dimension_size",
    ),
    **_each(
        _DEVICES,
        "sdy.manual_computation sdy.mesh sdy.sharding_constraint"
        " stablehlo.all_gather stablehlo.all_reduce"
        " stablehlo.all_to_all stablehlo.collective_broadcast"
        " stablehlo.collective_permute stablehlo.collective_reduce"
        " stablehlo.cross-replica-sum stablehlo.partition_id stablehlo.reduce_scatter"
        " stablehlo.replica_id",
    ),
    **_each(
        _REFUSED,
        "chlo.broadcast_complex stablehlo.einsum stablehlo.unary_einsum"
        " chlo.ragged_dot stablehlo.after_all"
        " stablehlo.async_done stablehlo.async_start"
        " stablehlo.create_token stablehlo.infeed stablehlo.outfeed stablehlo.recv"
        " stablehlo.rng stablehlo.send stablehlo.uniform_dequantize"
        " stablehlo.uniform_quantize",
    ),
    **_each(
        "in `saved`, where reading it makes another op of it",
        "stablehlo.broadcast stablehlo.dot stablehlo.get_tuple_element stablehlo.tuple",
    ),
    **_each(
        _INTERNAL,
        "neuronjax.complex_cholesky neuronjax.complex_triangular_solve neuronjax.fft",
    ),
    **_each(
        _PRIMITIVE, "chlo._asin_acos_kernel chlo.scan chlo.tan chlo.broadcast_polygamma"
    ),
}
