"""Rules that are others from release to release: meanings, defaults, limits.

Sources as in `rows_names`; "samples#134" and the like are issues of nki-samples.
"""

from __future__ import annotations

from typing import Any

from neuronjax.nki.releases.difference import ReleaseDifference, When
from neuronjax.nki.releases.release import NEWER, OLDER

_NL, _NISA = "nki.language.", "nki.isa."
#: Instructions that returned their tile where they now write dst.
_RETURNING = (
    "activation activation_reduce affine_select bn_aggr bn_stats dma_transpose "
    "dropout iota local_gather max8 memset nc_find_index8 nc_match_replace8 nc_matmul "
    "nc_transpose range_select reciprocal scalar_tensor_tensor sequence_bounds "
    "tensor_copy tensor_copy_dynamic_src tensor_copy_predicated "
    "tensor_partition_reduce tensor_reduce tensor_scalar tensor_scalar_reduce "
    "tensor_tensor tensor_tensor_scan"
).split()


def _lost(
    name: str, what: str, remedy: str, source: str, **more: Any
) -> ReleaseDifference:
    fields = {"kind": "behaviour", **more}
    return ReleaseDifference(
        name=name, what=what, remedy=remedy, source=source, **fields
    )


def _note(
    name: str, what: str, remedy: str, source: str, **more: Any
) -> ReleaseDifference:
    return _lost(name, what, remedy, source, effect="note", **more)


_NAMESPACES = (
    _lost(
        "nki",
        "is not there before 2.27",
        "import neuronxcc.nki, in the older style",
        "RN 2.27, guide", kind="absent", until="2.27",
    ),
    _note(
        "neuronxcc.nki",
        "is deprecated, and gone from kernels in 0.4",
        "import nki, and write dst= of every instruction",
        "RN 0.2, RN 0.3, guide", kind="deprecated", since="2.27", until="0.4",
    ),
    _lost(
        "neuronxcc.nki",
        "is a compilation error in kernels since 0.4",
        "import nki, and write dst= of every instruction",
        "RN 0.4, guide", kind="removed", since="0.4",
    ),
    _lost(
        "nki.baremetal",
        "silently returns zeros under SDK 2.32",
        "call the kernel itself",
        "samples#134", since="0.6", when=When(style=OLDER),
    ),
    _lost(
        "nki.baremetal", "was removed in 2.27", "call the kernel itself",
        "API 2.26, API 2.27, RN 0.2", kind="removed", since="2.27",
        when=When(style=NEWER),
    ),
    _lost(
        f"{_NL}affine_range",
        "takes no precise_schedule=: a TypeError under SDK 2.32",
        "leave precise_schedule= out",
        "samples#134", kind="removed", since="0.6",
        when=When(keyword="precise_schedule"),
    ),
    *(
        _lost(
            f"{_NISA}{name}",
            "writes dst, its first argument, since 2.27; it returned a tile",
            f"nisa.{name}(dst, ...)",
            "RN 2.27, guide", since="2.27", when=When(style=OLDER, valued=True),
        )
        for name in _RETURNING
    ),
    _lost(
        f"{_NISA}nc_stream_shuffle", "src stands before dst by position before 2.27",
        "give dst= and src= by name", "RN 2.27", until="2.27", effect="order",
        when=When(positional=2),
    ),
)  # fmt: skip

_RENAMED = (
    _lost(
        f"{_NISA}nc_matmul",
        "is_moving_onezero= is called is_moving_zero= in 2.27",
        "is_moving_zero=", "RN 2.27, RN 0.2", kind="renamed", since="2.27",
        until="0.2", when=When(keyword="is_moving_onezero"),
    ),
    _lost(
        f"{_NISA}nc_matmul",
        "is_moving_zero= is called is_moving_onezero= since 0.2",
        "is_moving_onezero=", "RN 0.2", kind="renamed", since="0.2",
        when=When(keyword="is_moving_zero"),
    ),
    _lost(
        "nki.tensor", "is called nki.meta.tensor since 0.2", "import nki.meta",
        "RN 0.2", kind="renamed", since="0.2",
    ),
    _lost(
        f"{_NISA}register_move", "imm= is called src= since 0.3, and is a register",
        "src=nisa.register_alloc(value)", "RN 0.3, guide", kind="renamed", since="0.3",
        when=When(keyword="imm"),
    ),
    _lost(
        f"{_NISA}dma_compute",
        "scales stands before reduce_op by position before 0.3",
        "give reduce_op= and scales= by name", "RN 0.3, guide", until="0.3",
        effect="order", when=When(positional=3),
    ),
    _lost(
        f"{_NISA}affine_select", "offset is the third argument by position before 0.3",
        "give all arguments by name", "RN 0.3, guide", since="2.27", until="0.3",
        effect="order", when=When(positional=3),
    ),
    _note(
        f"{_NISA}affine_select", "offset= has no documented default before 0.3",
        "offset=0", "RN 0.3, guide", kind="default", since="2.27", until="0.3",
        when=When(called=True, without="offset", position=3),
    ),
    _note(
        f"{_NISA}iota", "offset= has no documented default before 0.3", "offset=0",
        "RN 0.3, guide", kind="default", since="2.27", until="0.3",
        when=When(called=True, without="offset", position=3),
    ),
    _lost(
        f"{_NL}program_id", "axis= has no default before 0.3", "axis=0",
        "RN 0.3, guide", kind="default", since="2.27", until="0.3",
        when=When(called=True, without="axis", position=1),
    ),
    _note(
        f"{_NL}sequential_range", "stop and step have no documented default before 0.3",
        "give start, stop and step", "RN 0.3, guide", kind="default", since="2.27",
        until="0.3", when=When(called=True, without="step", position=3),
    ),
)  # fmt: skip

_DEFAULTS = (
    *(
        _note(
            f"{_NL}{name}", "buffer= is None by default before 0.3, sbuf from it on",
            "give buffer=", "RN 0.3, guide", kind="default", since="2.27", until="0.3",
            when=When(called=True, without="buffer", position=3),
        )
        for name in ("ndarray", "zeros")
    ),
    _note(
        f"{_NL}num_programs", "axes= is None by default before 0.3, 0 from it on",
        "give axes=", "RN 0.3, guide", kind="default", since="2.27", until="0.3",
        when=When(called=True, without="axes", position=1),
    ),
    _note(
        f"{_NISA}core_barrier",
        "engine= is unknown by default before 0.3, gpsimd from it on, to the same end",
        "none is needed", "RN 0.3, guide", kind="default", since="2.27", until="0.3",
        when=When(called=True, without="engine", position=3),
    ),
    *(
        _note(
            f"{_NISA}{name}",
            f"engine= is unknown by default before 0.5, {engine} from it on",
            f"engine=nisa.engine.{engine}", "API 2.30, API 2.31", kind="default",
            since="2.27", until="0.5",
            when=When(called=True, without="engine", position=2),
        )
        for name, engine in (
            ("rand_get_state", "gpsimd"), ("rand_set_state", "gpsimd"),
            ("rng", "vector"),
        )
    ),
    _lost(
        f"{_NISA}range_select",
        "on_false_value= is 0 by default in 2.27, the least FP32 from 0.2 on",
        "take 0.2 or newer", "RN 0.2, API 2.27, API 2.28", kind="default",
        since="2.27", until="0.2", effect="values",
        when=When(called=True, without="on_false_value", position=11),
    ),
    *(
        _lost(
            f"{_NISA}range_select",
            f"{keyword}= is ignored before 0.3: it is always {value}",
            f"leave {keyword}= out, or take 0.3 or newer", "RN 0.2, RN 0.3, guide",
            since="2.27", until="0.3", effect="values", when=When(keyword=keyword),
        )
        for keyword, value in (
            ("on_false_value", "the least FP32"), ("reduce_cmd", "reset_reduce"),
        )
    ),
    _lost(
        f"{_NISA}quantize_mx",
        "its block scales are others before 0.5, from which on they are twice OCP's; "
        "the emulator takes the latter",
        "compare with a tolerance of one step, or take 0.5 or newer", "RN 0.5",
        until="0.5", effect="values",
    ),
    _lost(
        f"{_NISA}tensor_reduce",
        "axis=1 means the last dimension of three or four before 0.3",
        "check axis= of tensors of more than two dimensions", "RN 0.3, guide",
        since="2.27", until="0.3", effect="note", when=When(called=True),
    ),
    _note(
        f"{_NISA}nc_transpose", "engine= is ignored before 0.4",
        "none: the compiler chooses", "RN 0.4", since="2.27", until="0.4",
        when=When(keyword="engine"),
    ),
    _note(
        f"{_NL}copy",
        "goes through FP32 on ScalarE before 0.6, and not from PSUM to SBUF: integers "
        "beyond 2^23 are not kept",
        "nisa.tensor_copy", "RN 0.3, RN 0.4, RN 0.6", since="0.3", until="0.6",
        when=When(called=True),
    ),
)  # fmt: skip

_STRICTER = (
    *(
        _lost(
            f"{_NISA}*", f"takes no number for {keyword}= since 0.3",
            f"nisa.{keyword}.<name>", "RN 0.3, guide", kind="limit", since="0.3",
            when=When(keyword=keyword, literal="int"),
        )
        for keyword in ("dge_mode", "engine", "oob_mode", "reduce_cmd")
    ),
    _lost(
        f"{_NL}*", "takes no string for buffer= since 0.3", "buffer=nl.sbuf and so on",
        "RN 0.3, guide", kind="limit", since="0.3",
        when=When(keyword="buffer", literal="str"),
    ),
    _lost(
        "python: * in a kernel's signature",
        "is refused since 0.3",
        "leave the * out", "RN 0.3, guide", kind="limit", since="0.3",
    ),
    _lost(
        "python: a list as default of a kernel",
        "is refused since 0.3", "a tuple", "RN 0.3, guide",
        kind="limit", since="0.3",
    ),
    _note(
        "python: is",
        "is documented as refused in kernels since 0.3; the vendor's own kernels of "
        "that release have it",
        "== and !=", "RN 0.3, guide, nki-library 2.29", kind="limit", since="0.3",
    ),
    _note(
        "nki.jit", "mode= has no effect since 0.3", "leave mode= out", "RN 0.3, guide",
        kind="deprecated", since="0.3", when=When(keyword="mode"),
    ),
    _note(
        f"{_NL}hbm", "holds no result of a kernel since 0.3", "nl.shared_hbm",
        "RN 0.3, guide", kind="limit", since="0.3",
    ),
    _lost(
        f"{_NISA}dma_copy", "reads no PSUM since 0.3",
        "nisa.tensor_copy to SBUF first", "RN 0.3, guide", kind="limit", since="0.3",
        when=When(traced="psum_source"),
    ),
    _note(
        f"{_NISA}dma_transpose",
        "dst has to have the rank of src since 0.4", "a dst of src's rank",
        "RN 0.4, guide", kind="limit", since="0.4", when=When(traced="other_rank"),
    ),
    _lost(
        f"{_NISA}dma_transpose",
        "hwdge wants 16 rows and a last size of 128 before 0.6",
        "such a shape, or dge_mode unknown", "RN 0.6", kind="limit", until="0.6",
        when=When(traced="hwdge_shape"),
    ),
    _lost(
        f"{_NISA}nc_matmul",
        "writes at most 4096 elements per partition before 0.5",
        "a smaller moving tile", "RN 0.5", kind="limit", until="0.5",
        when=When(traced="wide_matmul"),
    ),
    _lost(
        f"{_NISA}nc_matmul", "takes no float8_e4m3fn before 0.4",
        "float8_e4m3, or take 0.4 or newer", "RN 0.4", kind="limit", until="0.4",
        when=When(traced="ocp_fp8_matmul"),
    ),
    _lost(
        f"{_NISA}sendrecv", "wants a multiple of 16 partitions before 0.4",
        "16, 32 ... partitions", "RN 0.4", kind="limit", until="0.4",
        when=When(traced="odd_partitions"),
    ),
    _lost(
        f"{_NISA}tensor_scalar_reduce", "needs reduce_res= before 0.6",
        "give reduce_res=", "RN 0.6, API 2.31", kind="limit", since="2.27",
        until="0.6", when=When(called=True, without="reduce_res", position=6),
    ),
    _note(
        f"{_NL}rsqrt", "takes no tile in PSUM since 0.5",
        "nisa.activation(op=nl.rsqrt)",
        "RN 0.5, guide", kind="limit", since="0.5", when=When(called=True),
    ),
)  # fmt: skip

_KNOWN = (
    *(
        _lost(
            f"{_NL}{name}", "does not compile for the chip: a known issue since 0.3",
            remedy, "RN 0.3, RN 0.4", kind="limit", since="0.3",
            when=When(called=True),
        )
        for name, remedy in (
            ("divide", "nl.multiply(x, nl.reciprocal(y))"),
            ("fmod", "no instruction has it"), ("mod", "no instruction has it"),
        )
    ),
    _lost(
        f"{_NL}matmul", "works with transpose_x=True alone, since 0.3",
        "nl.matmul(x, y, transpose_x=True) of an x that lies so", "RN 0.3, RN 0.4",
        kind="limit", since="0.3",
        when=When(called=True, without="transpose_x", position=3),
    ),
    *(
        _lost(
            f"{_NL}random_seed", "takes a [1, 1] tensor and no number, since 0.3",
            "nl.full((1, 1), seed, dtype=nl.int32, buffer=nl.sbuf)", "RN 0.3, RN 0.4",
            kind="limit", since="0.3", when=When(keyword=keyword, literal="int"),
        )
        for keyword in ("seed", "0")
    ),
    *(
        _lost(
            f"{_NL}power", "takes no number as exponent, since 0.3",
            "a tile of the exponent", "RN 0.3, RN 0.4", kind="limit", since="0.3",
            when=When(keyword=keyword, literal=literal),
        )
        for keyword in ("y", "1")
        for literal in ("int", "float")
    ),
    _note(
        f"{_NL}store", "takes no tile in PSUM in 0.3", "nisa.tensor_copy to SBUF first",
        "RN 0.3", kind="limit", since="0.3", until="0.4", when=When(called=True),
    ),
    _note(
        f"{_NISA}local_gather",
        "num_elem_per_idx is ignored in 0.6 unless it and num_valid_indices make dst's "
        "size",
        "give both, of a product that is dst's free size", "RN 0.6", since="0.6",
        when=When(called=True),
    ),
    _note(
        f"{_NL}dynamic_range",
        "its variable is no offset of .ap() before 0.4",
        "nl.affine_range where the bounds are known", "RN 0.3, RN 0.4", kind="limit",
        since="0.3", until="0.4",
    ),
)  # fmt: skip

_DEPRECATED = (
    _note(
        f"{_NL}par_dim",
        "is documented no more since 2.27, as tensors have no blocks since",
        "lists of tiles, or more free dimensions", "API 2.26, API 2.27, guide",
        kind="deprecated", since="2.27",
    ),
    *(
        _note(
            f"{_NISA}tensor_copy_dynamic_{end}", "is deprecated, and removed in 0.4",
            "nisa.tensor_copy with t.ap(..., scalar_offset=...)", "RN 0.3",
            kind="deprecated", since="0.3", until="0.4",
        )
        for end in ("src", "dst")
    ),
    _note(
        f"{_NL}tile_size.total_available_sbuf_size",
        "is deprecated since 0.4: it is the size per partition",
        "tile_size.sbuf_fmax_bytes, or sbuf_size_bytes for all", "RN 0.4",
        kind="deprecated", since="0.4",
    ),
    _note(
        f"{_NL}dynamic_range", "is deprecated since 0.6", "nl.fori_loop",
        "RN 0.6, guide", kind="deprecated", since="0.6",
    ),
    _note(
        "python: while register",
        "is deprecated since 0.6", "nl.while_loop",
        "RN 0.6, guide", kind="deprecated", since="0.6",
    ),
)  # fmt: skip

RULES: tuple[ReleaseDifference, ...] = (
    *_NAMESPACES, *_RENAMED, *_DEFAULTS, *_STRICTER, *_KNOWN, *_DEPRECATED,
)  # fmt: skip
