"""`nki.isa`: one function per instruction, made from the rows of `ir.nki_instructions`.

`request` makes each function and its documentation from the row: it checks the
arguments and emits the instruction, whose semantics are under the same name in
`execution.tiles`. Where a row does not suffice, a function in the modules imported here
adds to it. `__init__.pyi` has the signatures for editors and type checkers.
"""

from neuronjax.ir.nki_instructions import SPECS as _SPECS
from neuronjax.nki.isa import (
    computing as _computing,  # noqa: F401
    cores as _cores,  # noqa: F401
    gathering as _gathering,  # noqa: F401
    matmul as _matmul,  # noqa: F401
    microscaling as _microscaling,  # noqa: F401
    moving as _moving,  # noqa: F401
    random_numbers as _random_numbers,  # noqa: F401
    registers as _registers,  # noqa: F401
    request as _request,
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
from neuronjax.nki.isa.versions import (
    get_nc_sub_version as get_nc_sub_version,
    get_nc_version as get_nc_version,
)
from neuronjax.nki.registers import VirtualRegister as VirtualRegister
from neuronjax.nki.trace import NkiInstruction as NkiInstruction

globals().update({name: _request.made(spec) for name, spec in _SPECS.items()})
