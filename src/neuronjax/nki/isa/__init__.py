"""`nki.isa`: one function per instruction.

Each file holds the front-end functions of a family. `request` checks their arguments
by the row of `ir.nki_instructions`, makes their documentation of it, and emits the
instruction, whose semantics have its name in `execution.tiles`.
"""

from neuronjax.ir.nki_instructions import SPECS as _SPECS
from neuronjax.nki.isa import request as _request
from neuronjax.nki.isa.activation import (
    activate2 as activate2,
    activation as activation,
    activation_reduce as activation_reduce,
)
from neuronjax.nki.isa.constants import (
    dge_mode as dge_mode,
    dma_engine as dma_engine,
    engine as engine,
    gpsimd_engine as gpsimd_engine,
    matmul_perf_mode as matmul_perf_mode,
    nc_version as nc_version,
    oob_mode as oob_mode,
    reduce_cmd as reduce_cmd,
    scalar_engine as scalar_engine,
    tensor_engine as tensor_engine,
    unknown_engine as unknown_engine,
    vector_engine as vector_engine,
)
from neuronjax.nki.isa.copying import (
    iota as iota,
    memset as memset,
    tensor_copy as tensor_copy,
)
from neuronjax.nki.isa.cores import core_barrier as core_barrier, sendrecv as sendrecv
from neuronjax.nki.isa.dma import (
    dma_compute as dma_compute,
    dma_copy as dma_copy,
    dma_transpose as dma_transpose,
)
from neuronjax.nki.isa.elementwise import (
    exponential as exponential,
    reciprocal as reciprocal,
    scalar_tensor_tensor as scalar_tensor_tensor,
    tensor_scalar as tensor_scalar,
    tensor_tensor as tensor_tensor,
)
from neuronjax.nki.isa.gathering import (
    local_gather as local_gather,
    nc_n_gather as nc_n_gather,
    nc_stream_shuffle as nc_stream_shuffle,
    nonzero_with_count as nonzero_with_count,
    sequence_bounds as sequence_bounds,
    topk as topk,
)
from neuronjax.nki.isa.matmul import (
    nc_matmul as nc_matmul,
    nc_transpose as nc_transpose,
)
from neuronjax.nki.isa.microscaling import (
    nc_matmul_mx as nc_matmul_mx,
    quantize_mx as quantize_mx,
)
from neuronjax.nki.isa.random_numbers import (
    dropout as dropout,
    rand2 as rand2,
    rand_get_state as rand_get_state,
    rand_set_state as rand_set_state,
    rng as rng,
    set_rng_seed as set_rng_seed,
)
from neuronjax.nki.isa.reductions import (
    tensor_partition_reduce as tensor_partition_reduce,
    tensor_reduce as tensor_reduce,
    tensor_scalar_cumulative as tensor_scalar_cumulative,
    tensor_scalar_reduce as tensor_scalar_reduce,
    tensor_tensor_scan as tensor_tensor_scan,
)
from neuronjax.nki.isa.registers import (
    register_alloc as register_alloc,
    register_load as register_load,
    register_move as register_move,
    register_store as register_store,
)
from neuronjax.nki.isa.selection import (
    affine_select as affine_select,
    range_select as range_select,
    select_reduce as select_reduce,
    tensor_copy_predicated as tensor_copy_predicated,
)
from neuronjax.nki.isa.statistics import (
    bn_aggr as bn_aggr,
    bn_stats as bn_stats,
    max8 as max8,
    nc_find_index8 as nc_find_index8,
    nc_match_replace8 as nc_match_replace8,
)
from neuronjax.nki.isa.versions import (
    get_nc_sub_version as get_nc_sub_version,
    get_nc_version as get_nc_version,
)
from neuronjax.nki.registers import VirtualRegister as VirtualRegister
from neuronjax.nki.trace import NkiInstruction as NkiInstruction

for _spec in _SPECS.values():
    _request.document(globals()[_spec.name], _spec)
