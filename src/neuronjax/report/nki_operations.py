"""The names of the vendor's nki package, and which of them are supported here.

There is one row per documented name of nki.isa, nki.language and nki.collectives.
Whether a name exists, has semantics and has a time is read from the registries, so that
the table cannot disagree with the emulator; engines and first NeuronCore are those of
the instruction's spec. Sources: nki/api/nki/{isa,language,collectives}/__init__.py of
the Neuron documentation.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, Literal

from neuronjax.execution.tiles import registry
from neuronjax.ir.instruction import Label
from neuronjax.ir.nki_instructions import SPECS
from neuronjax.ir.nki_spec import InstructionSpec
from neuronjax.nki import collectives, isa, language
from neuronjax.timing import kernel_cost

Group = Literal["isa", "language", "collectives"]
Kind = Literal["instruction", "function", "constant"]

_ISA_FUNCTIONS = "get_nc_sub_version get_nc_version"
_ISA_CONSTANTS = """
dge_mode dma_engine engine gpsimd_engine matmul_perf_mode nc_version NkiInstruction
NkiValidationError oob_mode reduce_cmd scalar_engine tensor_engine unknown_engine
vector_engine VirtualRegister
"""
_LANGUAGE_FUNCTIONS = """
abs abs_max abs_min add affine_range all arctan bitwise_and bitwise_or bitwise_xor
broadcast_to ceil copy cos device_print divide dropout ds dynamic_range empty_like equal
erf erf_dx exp expand_dims floor fmod fori_loop full gather_flattened gelu
gelu_apprx_sigmoid gelu_apprx_sigmoid_dx gelu_apprx_tanh gelu_dx greater greater_equal
invert is_hbm is_on_chip is_psum is_sbuf left_shift less less_equal load
load_transpose2d log logical_and logical_not logical_or logical_xor matmul max maximum
mean min minimum mish mod multiply ndarray negative no_reorder not_equal num_programs
ones power prod program_id program_ndim rand random_seed reciprocal relu right_shift
rms_norm rsqrt sequential_range shared_constant shared_identity_matrix sigmoid sign silu
silu_dx sin softmax softplus sqrt square static_range store subtract sum tan tanh
transpose trunc var where while_loop zeros zeros_like
"""
_LANGUAGE_CONSTANTS = """
average bfloat16 bool_ bypass float16 float32 float4_e2m1fn_x4 float8_e4m3 float8_e4m3fn
float8_e4m3fn_x4 float8_e5m2 float8_e5m2_x4 float8_e8m0fnu hbm int16 int32 int8
MemoryRegion NKIObject NkiTensor prelu private_hbm psum sbuf shared_hbm tfloat32
tile_size uint16 uint32 uint8
"""
_COLLECTIVES = """
all_gather all_gather_v all_reduce all_to_all all_to_all_v collective_permute
collective_permute_implicit collective_permute_implicit_current_processing_rank_id
collective_permute_implicit_reduce rank_id reduce_scatter
"""
_PACKAGES = {"isa": isa, "language": language, "collectives": collectives}
_LETTERS = {"gpsimd": "G", "sync": "Q"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelOperation:
    """One row of the table.

    Attributes:
        name: "nc_matmul".
        group: the package that has the name.
        kind: "instruction"; "function", executed as instructions or while tracing; or
            "constant", also for a class or dtype.
        front_end: whether neuronjax has the name.
        semantics: whether the emulator runs it; None if there is nothing to run.
        cost: whether its time is known; None if it takes no time.
        engines: the letters of engines that can execute it: T tensor, V vector, S
            scalar, G gpsimd, D dma, Q the sequencers.
        generation: first NeuronCore that has it, "" for all.
        label: whether an instruction's results are exact or modelled.
    """

    name: str
    group: Group
    kind: Kind
    front_end: bool
    semantics: bool | None = None
    cost: bool | None = None
    engines: str = ""
    generation: str = ""
    label: Label | None = None

    @property
    def missing(self) -> bool:
        """Return whether a kernel that uses the name does not run, or has no time."""
        return not self.front_end or self.semantics is False or self.cost is False

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@functools.cache
def kernel_operations() -> tuple[KernelOperation, ...]:
    """Return the whole table, by package and kind, names in alphabetical order."""
    return (
        *(_instruction(SPECS[name]) for name in sorted(SPECS)),
        *_named("isa", "function", _ISA_FUNCTIONS),
        *_named("isa", "constant", _ISA_CONSTANTS),
        *_named("language", "function", _LANGUAGE_FUNCTIONS),
        *_named("language", "constant", _LANGUAGE_CONSTANTS),
        *_named("collectives", "function", _COLLECTIVES),
    )


def _instruction(spec: InstructionSpec) -> KernelOperation:
    letters = (_LETTERS.get(name, name[0].upper()) for name in spec.engines)
    return KernelOperation(
        name=spec.name,
        group="isa",
        kind="instruction",
        front_end=hasattr(isa, spec.name),
        semantics=registry.has_semantics(spec.name) if spec.runs else None,
        cost=spec.name in kernel_cost.RULES if spec.runs else None,
        engines="".join(letters),
        generation=spec.generation,
        label=spec.label,
    )


def _named(group: Group, kind: Kind, names: str) -> Iterator[KernelOperation]:
    for name in names.split():
        exists = hasattr(_PACKAGES[group], name)
        yield KernelOperation(name=name, group=group, kind=kind, front_end=exists)
