"""Rows of the NKI instructions that select, move and draw; see `nki_instructions`."""

from __future__ import annotations

from neuronjax.ir.nki_spec import (
    ENGINE,
    OFF_PSUM,
    SBUF,
    checked,
    choice,
    column,
    command,
    flag,
    integer,
    lanes,
    note,
    number,
    operator,
    out,
    pattern,
    result,
    row,
    state,
    tensor,
)

_ORDERS = frozenset({"equal", "less", "less_equal", "greater", "greater_equal"})
_MAXIMUM = frozenset({"maximum", "max"})
_ADD = frozenset({"add"})

_INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
_IDS = ("float32", "int32")
_WORD = ("int32", "uint32", "float32")
_PREDICATES = ("uint8", "uint16", "uint32", "bool")
_SELECTORS = ("int8", "uint8", "int16", "uint16", "bool")
_FP8_X4 = ("float8_e5m2_x4", "float8_e4m3fn_x4")
_SCALES = ("float8_e8m0fnu", "uint8")

_DGE = choice(
    "dge_mode",
    ("unknown", "swdge", "hwdge", "none"),
    "who generates the descriptors; values do not depend on it",
)
_OOB = choice("oob_mode", ("error", "skip"), "what a runtime index out of bounds does")
_PRIORITY = note("priority", "DMA class of service, 0 to 3 (NeuronCore-v4)")


_SELECTIONS = (
    lanes(
        "tensor_copy_predicated",
        "vector",
        out(),
        tensor("src", or_number=True, like="dst"),
        tensor("predicate", dtypes=_PREDICATES, like="dst"),
        flag("reverse_pred", "copies where the predicate is 0 instead"),
        one_in_psum=(0, 1),
        gathered=(1,),
        reads_outputs=True,
    ),
    lanes(
        "select_reduce",
        "vector",
        out(),
        tensor("predicate", dtypes=_SELECTORS, like="dst"),
        tensor("on_true", text="no tfloat32, no 32-bit integers", like="dst"),
        column("on_false"),
        flag("reverse_pred", "whether the predicate means its opposite"),
        command("idle reset_reduce reduce"),
        checked("reduce_op", _MAXIMUM),
        state("reduce", optional=True),
        result(),
        one_in_psum=(0, 1),
    ),
    lanes(
        "range_select",
        "vector",
        out(),
        tensor("on_true_tile", like="dst"),
        tensor("bound0", elements=1, dtypes=("float32",)),
        tensor("bound1", elements=1, dtypes=("float32",)),
        integer("range_start", "index of the first element of the free axis"),
        operator("comp_op0", _ORDERS),
        operator("comp_op1", _ORDERS),
        command("idle reset reset_reduce reduce"),
        checked("reduce_op", _MAXIMUM),
        note("on_false_value", "FP32_MIN, nothing else"),
        state("reduce", optional=True),
        result(),
        capability="range_select",
        instead="nisa.affine_select",
    ),
    lanes(
        "affine_select",
        "gpsimd",
        out("dst", SBUF),
        tensor("on_true_tile", SBUF, like="dst"),
        number("on_false_value"),
        *pattern("as many values as elements per partition"),
        operator("cmp_op", _ORDERS | {"not_equal"}),
    ),
)

_MOVEMENT = (
    lanes(
        "tensor_copy",
        "vector scalar gpsimd",
        out(),
        tensor("src", like="dst"),
        ENGINE,
        note("dtype", "that of dst, if given; kernels of earlier releases repeat it"),
        gathered=(0,),
        gathering_engines=("vector", "scalar"),
    ),
    row(
        "memset",
        "vector gpsimd",
        out("dst", ()),
        number("value", "of an integer tile an integer; of packed dtypes only 0"),
        ENGINE,
    ),
    row(
        "iota",
        "gpsimd",
        out("dst", SBUF),
        *pattern("whose counts make up a partition of dst"),
    ),
    lanes(
        "dma_copy",
        "dma",
        out("dst", ()),
        tensor("src", (), text="as many elements as dst"),
        _OOB,
        _DGE,
        note("engine", "who generates the descriptors"),
        _PRIORITY,
    ),
    row(
        "dma_transpose",
        "dma",
        out("dst", SBUF, text="of src's dtype"),
        tensor("src", OFF_PSUM, text="may be gathered by a vector of indices"),
        note("axes", "the order; only the documented one of the number of dimensions"),
        _DGE,
        _OOB,
        _PRIORITY,
        reads="part",  # rows without a value become such columns
    ),
    row(
        "dma_compute",
        "dma",
        out("dst", OFF_PSUM),
        tensor("srcs", OFF_PSUM, text="1 to 16, as many elements each as dst"),
        checked("reduce_op", _ADD),
        note("scales", "all 1.0, or None"),
        note("unique_indices", "True: equal indices are not supported"),
        _OOB,
        label="modelled",
    ),
    row(
        "nc_stream_shuffle",
        "vector",
        out(),
        tensor("src", text="of dst's dtype, equal elements per partition"),
        note("shuffle_mask", '32 integers below 32, or 255 for "stays"'),
        keeps=True,
    ),
    row(
        "local_gather",
        "gpsimd",
        out("dst", SBUF, text="of src_buffer's dtype"),
        tensor("src_buffer", SBUF, text="a multiple of 16 partitions"),
        tensor("index", SBUF, dtypes=("uint16",), text="read partition first"),
        note("num_elem_per_idx", "contiguous elements per index: 1, 2, 4, ... 32"),
        note("num_valid_indices", "how many of a group's indices count; default all"),
        reads="part",
    ),
    row(
        "nc_n_gather",
        "gpsimd",
        out("dst", SBUF),
        tensor("data", SBUF, text="of dst's dtype; its free dimensions count as one"),
        tensor("indices", SBUF, dtypes=("uint32",), like="dst"),
        reads="part",
    ),
    row(
        "sequence_bounds",
        "gpsimd",
        out("dst", SBUF, dtypes=_IDS, text="(1, 2, n): starts, then ends"),
        tensor("segment_ids", SBUF, dtypes=_IDS, text="(1, n); 0 is padding"),
    ),
    row(
        "nonzero_with_count",
        "gpsimd",
        out(
            "dst",
            SBUF,
            dtypes=("int32",),
            text="one element per partition more than src; others stay",
        ),
        tensor("src", SBUF, dtypes=_IDS),
        integer("index_offset", "added to every index"),
        integer("padding_val", "fills the rest"),
        capability="nonzero_with_count",
        reads="part",
        reads_outputs=True,
        keeps=True,
    ),
    row(
        "topk",
        "gpsimd",
        out("val_dst", SBUF, dtypes=("bfloat16",), text="(partitions, k)"),
        out("idx_dst", SBUF, dtypes=("uint32",), like="val_dst"),
        tensor(
            "src",
            SBUF,
            dtypes=("bfloat16",),
            text="elements 0 to 15 are column 0 of 16 partitions, and so on",
        ),
        note("n", "elements of the snake that count, 8 to 65,535"),
        reads="part",
    ),
    lanes(
        "quantize_mx",
        "vector",
        out("dst", SBUF, dtypes=_FP8_X4, text="[P, F / 4]"),
        out(
            "dst_scale",
            SBUF,
            dtypes=_SCALES,
            text="[P, F / 4], fewer partitions "
            "where it starts at 4, 8 or 12; for P = 32 [4, F / 4] too",
        ),
        tensor(
            "src",
            SBUF,
            dtypes=("float16", "bfloat16"),
            text="[P, F], P a multiple of 32",
        ),
        capability="quantize_mx",
        instead="a cast to float8_e4m3",
    ),
)

_RANDOM = (
    row(
        "rng",
        "vector gpsimd",
        out(dtypes=_INTEGERS),
        ENGINE,
        state("random"),
        label="modelled",
    ),
    row(
        "rand2",
        "vector",
        out(),
        column("min"),
        column("max", "larger"),
        state("random"),
        label="modelled",
        capability="xorwow",
        instead="nisa.rng",
    ),
    row(
        "dropout",
        "vector",
        out(text="of data's dtype"),
        tensor("data", like="dst"),
        column("prob", "1 drops everything"),
        state("random"),
        label="modelled",
    ),
    row(
        "set_rng_seed",
        "vector",
        state("random", "output"),
        tensor("src_seeds", dtypes=_WORD, text="(1, 1)"),
        label="modelled",
    ),
    row(
        "rand_set_state",
        "vector gpsimd",
        tensor(
            "src_seeds",
            SBUF,
            dtypes=("uint32",),
            text="(lanes, 6) for gpsimd, (lanes, 24) for vector",
        ),
        state("random"),
        ENGINE,
        label="modelled",
        capability="gpsimd_random",
    ),
    row(
        "rand_get_state",
        "vector gpsimd",
        out(dtypes=("uint32",), text="(lanes, 6) for gpsimd, (lanes, 24) for vector"),
        state("random", "input"),
        ENGINE,
        label="modelled",
        capability="gpsimd_random",
    ),
)

_SEQUENCERS = (
    row(
        "core_barrier",
        "sync",
        tensor("data", ("shared_hbm", "sbuf"), role="none", text="synchronized on"),
        note("cores", "(0, 1); a launch of one core may name its own, 0"),
        note("engine", "who waits"),
        capability="core_barrier",
    ),
    row(
        "sendrecv",
        "dma",
        tensor("src", SBUF),
        out(
            "dst",
            SBUF,
            text="of the shape and dtype of what is received; no part of src",
        ),
        note("send_to_rank", "0 or 1"),
        note("recv_from_rank", "0 or 1"),
        note("pipe_id", "both cores have to give the same ones in the same order"),
        note(
            "dma_engine",
            "`dma`, or `gpsimd_dma` for up to 1024, 512 or 256 bytes "
            "per partition of elements of 32, 16 or 8 bits",
        ),
        capability="core_barrier",
        reads="part",
    ),
    row("register_alloc", "sync", note("x", "an int, or None"), runs=False),
    row(
        "register_load",
        "sync",
        note("dst", "a register"),
        note("src", "a tensor of one element"),
    ),
    row(
        "register_move",
        "sync",
        note("dst", "a register"),
        note("src", "an int or a register"),
    ),
    row(
        "register_store",
        "sync",
        note("dst", "a tensor of one element"),
        note("src", "a register"),
    ),
)


MOVING = (*_SELECTIONS, *_MOVEMENT, *_RANDOM, *_SEQUENCERS)
