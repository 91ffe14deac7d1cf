"""`nki.language`: tensors, loops, operators and compositions of instructions."""

from neuronjax.nki.dtypes import (
    DType as DType,
)
from neuronjax.nki.language.arithmetic import (
    abs_max as abs_max,
)
from neuronjax.nki.language.arithmetic import (
    abs_min as abs_min,
)
from neuronjax.nki.language.arithmetic import (
    add as add,
)
from neuronjax.nki.language.arithmetic import (
    bitwise_and as bitwise_and,
)
from neuronjax.nki.language.arithmetic import (
    bitwise_or as bitwise_or,
)
from neuronjax.nki.language.arithmetic import (
    bitwise_xor as bitwise_xor,
)
from neuronjax.nki.language.arithmetic import (
    divide as divide,
)
from neuronjax.nki.language.arithmetic import (
    equal as equal,
)
from neuronjax.nki.language.arithmetic import (
    fmod as fmod,
)
from neuronjax.nki.language.arithmetic import (
    greater as greater,
)
from neuronjax.nki.language.arithmetic import (
    greater_equal as greater_equal,
)
from neuronjax.nki.language.arithmetic import (
    left_shift as left_shift,
)
from neuronjax.nki.language.arithmetic import (
    less as less,
)
from neuronjax.nki.language.arithmetic import (
    less_equal as less_equal,
)
from neuronjax.nki.language.arithmetic import (
    logical_and as logical_and,
)
from neuronjax.nki.language.arithmetic import (
    logical_or as logical_or,
)
from neuronjax.nki.language.arithmetic import (
    logical_xor as logical_xor,
)
from neuronjax.nki.language.arithmetic import (
    maximum as maximum,
)
from neuronjax.nki.language.arithmetic import (
    minimum as minimum,
)
from neuronjax.nki.language.arithmetic import (
    mod as mod,
)
from neuronjax.nki.language.arithmetic import (
    multiply as multiply,
)
from neuronjax.nki.language.arithmetic import (
    not_equal as not_equal,
)
from neuronjax.nki.language.arithmetic import (
    power as power,
)
from neuronjax.nki.language.arithmetic import (
    right_shift as right_shift,
)
from neuronjax.nki.language.arithmetic import (
    subtract as subtract,
)
from neuronjax.nki.language.creation import (
    ds as ds,
)
from neuronjax.nki.language.creation import (
    load as load,
)
from neuronjax.nki.language.creation import (
    ndarray as ndarray,
)
from neuronjax.nki.language.creation import (
    store as store,
)
from neuronjax.nki.language.creation import (
    zeros as zeros,
)
from neuronjax.nki.language.functions import (
    abs as abs,
)
from neuronjax.nki.language.functions import (
    arctan as arctan,
)
from neuronjax.nki.language.functions import (
    ceil as ceil,
)
from neuronjax.nki.language.functions import (
    copy as copy,
)
from neuronjax.nki.language.functions import (
    cos as cos,
)
from neuronjax.nki.language.functions import (
    erf as erf,
)
from neuronjax.nki.language.functions import (
    erf_dx as erf_dx,
)
from neuronjax.nki.language.functions import (
    exp as exp,
)
from neuronjax.nki.language.functions import (
    floor as floor,
)
from neuronjax.nki.language.functions import (
    gelu as gelu,
)
from neuronjax.nki.language.functions import (
    gelu_apprx_sigmoid as gelu_apprx_sigmoid,
)
from neuronjax.nki.language.functions import (
    gelu_apprx_sigmoid_dx as gelu_apprx_sigmoid_dx,
)
from neuronjax.nki.language.functions import (
    gelu_apprx_tanh as gelu_apprx_tanh,
)
from neuronjax.nki.language.functions import (
    gelu_dx as gelu_dx,
)
from neuronjax.nki.language.functions import (
    invert as invert,
)
from neuronjax.nki.language.functions import (
    log as log,
)
from neuronjax.nki.language.functions import (
    logical_not as logical_not,
)
from neuronjax.nki.language.functions import (
    mish as mish,
)
from neuronjax.nki.language.functions import (
    negative as negative,
)
from neuronjax.nki.language.functions import (
    reciprocal as reciprocal,
)
from neuronjax.nki.language.functions import (
    relu as relu,
)
from neuronjax.nki.language.functions import (
    rsqrt as rsqrt,
)
from neuronjax.nki.language.functions import (
    sigmoid as sigmoid,
)
from neuronjax.nki.language.functions import (
    sign as sign,
)
from neuronjax.nki.language.functions import (
    silu as silu,
)
from neuronjax.nki.language.functions import (
    silu_dx as silu_dx,
)
from neuronjax.nki.language.functions import (
    sin as sin,
)
from neuronjax.nki.language.functions import (
    softplus as softplus,
)
from neuronjax.nki.language.functions import (
    sqrt as sqrt,
)
from neuronjax.nki.language.functions import (
    square as square,
)
from neuronjax.nki.language.functions import (
    tan as tan,
)
from neuronjax.nki.language.functions import (
    tanh as tanh,
)
from neuronjax.nki.language.functions import (
    trunc as trunc,
)
from neuronjax.nki.language.movement import (
    broadcast_to as broadcast_to,
)
from neuronjax.nki.language.movement import (
    dropout as dropout,
)
from neuronjax.nki.language.movement import (
    empty_like as empty_like,
)
from neuronjax.nki.language.movement import (
    expand_dims as expand_dims,
)
from neuronjax.nki.language.movement import (
    full as full,
)
from neuronjax.nki.language.movement import (
    gather_flattened as gather_flattened,
)
from neuronjax.nki.language.movement import (
    load_transpose2d as load_transpose2d,
)
from neuronjax.nki.language.movement import (
    matmul as matmul,
)
from neuronjax.nki.language.movement import (
    no_reorder as no_reorder,
)
from neuronjax.nki.language.movement import (
    ones as ones,
)
from neuronjax.nki.language.movement import (
    rand as rand,
)
from neuronjax.nki.language.movement import (
    random_seed as random_seed,
)
from neuronjax.nki.language.movement import (
    shared_constant as shared_constant,
)
from neuronjax.nki.language.movement import (
    shared_identity_matrix as shared_identity_matrix,
)
from neuronjax.nki.language.movement import (
    transpose as transpose,
)
from neuronjax.nki.language.movement import (
    zeros_like as zeros_like,
)
from neuronjax.nki.language.names import *  # noqa: F403
from neuronjax.nki.language.printing import (
    device_print as device_print,
)
from neuronjax.nki.language.programs import (
    num_programs as num_programs,
)
from neuronjax.nki.language.programs import (
    program_id as program_id,
)
from neuronjax.nki.language.programs import (
    program_ndim as program_ndim,
)
from neuronjax.nki.language.reductions import (
    all as all,
)
from neuronjax.nki.language.reductions import (
    max as max,
)
from neuronjax.nki.language.reductions import (
    mean as mean,
)
from neuronjax.nki.language.reductions import (
    min as min,
)
from neuronjax.nki.language.reductions import (
    prod as prod,
)
from neuronjax.nki.language.reductions import (
    rms_norm as rms_norm,
)
from neuronjax.nki.language.reductions import (
    softmax as softmax,
)
from neuronjax.nki.language.reductions import (
    sum as sum,
)
from neuronjax.nki.language.reductions import (
    var as var,
)
from neuronjax.nki.language.reductions import (
    where as where,
)
from neuronjax.nki.language.sizes import (
    tile_size as tile_size,
)
from neuronjax.nki.loops import (
    affine_range as affine_range,
)
from neuronjax.nki.loops import (
    dynamic_range as dynamic_range,
)
from neuronjax.nki.loops import (
    fori_loop as fori_loop,
)
from neuronjax.nki.loops import (
    sequential_range as sequential_range,
)
from neuronjax.nki.loops import (
    static_range as static_range,
)
from neuronjax.nki.loops import (
    while_loop as while_loop,
)
from neuronjax.nki.memory import (
    MemoryRegion as MemoryRegion,
)
from neuronjax.nki.memory import (
    NKIObject as NKIObject,
)
from neuronjax.nki.memory import (
    is_hbm as is_hbm,
)
from neuronjax.nki.memory import (
    is_on_chip as is_on_chip,
)
from neuronjax.nki.memory import (
    is_psum as is_psum,
)
from neuronjax.nki.memory import (
    is_sbuf as is_sbuf,
)
from neuronjax.nki.tensor import (
    NkiTensor as NkiTensor,
)
