"""`nki.isa`: one function per instruction.

Each file holds the front-end functions of a family; a function checks its operands and
`emit`s one instruction, whose semantics have its name in `nki.semantics`.
"""

from neuronjax.nki.isa.activate2 import (
    activate2 as activate2,
)
from neuronjax.nki.isa.activate2 import (
    activation_reduce as activation_reduce,
)
from neuronjax.nki.isa.activation import (
    activation as activation,
)
from neuronjax.nki.isa.constants import (
    dge_mode as dge_mode,
)
from neuronjax.nki.isa.constants import (
    dma_engine as dma_engine,
)
from neuronjax.nki.isa.constants import (
    engine as engine,
)
from neuronjax.nki.isa.constants import (
    gpsimd_engine as gpsimd_engine,
)
from neuronjax.nki.isa.constants import (
    matmul_perf_mode as matmul_perf_mode,
)
from neuronjax.nki.isa.constants import (
    nc_version as nc_version,
)
from neuronjax.nki.isa.constants import (
    oob_mode as oob_mode,
)
from neuronjax.nki.isa.constants import (
    reduce_cmd as reduce_cmd,
)
from neuronjax.nki.isa.constants import (
    scalar_engine as scalar_engine,
)
from neuronjax.nki.isa.constants import (
    tensor_engine as tensor_engine,
)
from neuronjax.nki.isa.constants import (
    unknown_engine as unknown_engine,
)
from neuronjax.nki.isa.constants import (
    vector_engine as vector_engine,
)
from neuronjax.nki.isa.copying import (
    iota as iota,
)
from neuronjax.nki.isa.copying import (
    memset as memset,
)
from neuronjax.nki.isa.copying import (
    tensor_copy as tensor_copy,
)
from neuronjax.nki.isa.cores import (
    core_barrier as core_barrier,
)
from neuronjax.nki.isa.cores import (
    sendrecv as sendrecv,
)
from neuronjax.nki.isa.dma import (
    dma_copy as dma_copy,
)
from neuronjax.nki.isa.dma_arithmetic import (
    dma_compute as dma_compute,
)
from neuronjax.nki.isa.dma_arithmetic import (
    dma_transpose as dma_transpose,
)
from neuronjax.nki.isa.elementwise import (
    tensor_scalar as tensor_scalar,
)
from neuronjax.nki.isa.elementwise import (
    tensor_tensor as tensor_tensor,
)
from neuronjax.nki.isa.gathering import (
    local_gather as local_gather,
)
from neuronjax.nki.isa.gathering import (
    nc_n_gather as nc_n_gather,
)
from neuronjax.nki.isa.gathering import (
    nonzero_with_count as nonzero_with_count,
)
from neuronjax.nki.isa.gathering import (
    sequence_bounds as sequence_bounds,
)
from neuronjax.nki.isa.gathering import (
    topk as topk,
)
from neuronjax.nki.isa.matmul import (
    nc_matmul as nc_matmul,
)
from neuronjax.nki.isa.matmul import (
    nc_transpose as nc_transpose,
)
from neuronjax.nki.isa.microscaling import (
    nc_matmul_mx as nc_matmul_mx,
)
from neuronjax.nki.isa.microscaling import (
    quantize_mx as quantize_mx,
)
from neuronjax.nki.isa.random_numbers import (
    dropout as dropout,
)
from neuronjax.nki.isa.random_numbers import (
    rand2 as rand2,
)
from neuronjax.nki.isa.random_numbers import (
    rand_get_state as rand_get_state,
)
from neuronjax.nki.isa.random_numbers import (
    rand_set_state as rand_set_state,
)
from neuronjax.nki.isa.random_numbers import (
    rng as rng,
)
from neuronjax.nki.isa.random_numbers import (
    set_rng_seed as set_rng_seed,
)
from neuronjax.nki.isa.reductions import (
    tensor_partition_reduce as tensor_partition_reduce,
)
from neuronjax.nki.isa.reductions import (
    tensor_reduce as tensor_reduce,
)
from neuronjax.nki.isa.reductions import (
    tensor_scalar_cumulative as tensor_scalar_cumulative,
)
from neuronjax.nki.isa.reductions import (
    tensor_scalar_reduce as tensor_scalar_reduce,
)
from neuronjax.nki.isa.reductions import (
    tensor_tensor_scan as tensor_tensor_scan,
)
from neuronjax.nki.isa.registers import (
    register_alloc as register_alloc,
)
from neuronjax.nki.isa.registers import (
    register_load as register_load,
)
from neuronjax.nki.isa.registers import (
    register_move as register_move,
)
from neuronjax.nki.isa.registers import (
    register_store as register_store,
)
from neuronjax.nki.isa.selection import (
    affine_select as affine_select,
)
from neuronjax.nki.isa.selection import (
    range_select as range_select,
)
from neuronjax.nki.isa.selection import (
    select_reduce as select_reduce,
)
from neuronjax.nki.isa.selection import (
    tensor_copy_predicated as tensor_copy_predicated,
)
from neuronjax.nki.isa.statistics import (
    bn_aggr as bn_aggr,
)
from neuronjax.nki.isa.statistics import (
    bn_stats as bn_stats,
)
from neuronjax.nki.isa.statistics import (
    max8 as max8,
)
from neuronjax.nki.isa.statistics import (
    nc_find_index8 as nc_find_index8,
)
from neuronjax.nki.isa.statistics import (
    nc_match_replace8 as nc_match_replace8,
)
from neuronjax.nki.isa.vector_functions import (
    exponential as exponential,
)
from neuronjax.nki.isa.vector_functions import (
    nc_stream_shuffle as nc_stream_shuffle,
)
from neuronjax.nki.isa.vector_functions import (
    reciprocal as reciprocal,
)
from neuronjax.nki.isa.vector_functions import (
    scalar_tensor_tensor as scalar_tensor_tensor,
)
from neuronjax.nki.isa.versions import (
    get_nc_sub_version as get_nc_sub_version,
)
from neuronjax.nki.isa.versions import (
    get_nc_version as get_nc_version,
)
from neuronjax.nki.registers import (
    VirtualRegister as VirtualRegister,
)
from neuronjax.nki.trace import (
    NkiInstruction as NkiInstruction,
)
