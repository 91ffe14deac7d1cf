"""The rows of `nki_instructions` that select, move, or draw random numbers."""

from neuronjax.ir.nki_spec import (
    ADD,
    ENGINE,
    FP8_X4,
    MAXIMUM,
    OFF_PSUM,
    SBUF,
    SCALES,
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

_INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
_IDS = ("float32", "int32")
_WORD = ("int32", "uint32", "float32")
_PREDICATES = ("uint8", "uint16", "uint32", "bool")
_SELECTORS = ("int8", "uint8", "int16", "uint16", "bool")

_DGE = choice(
    "dge_mode",
    ("unknown", "swdge", "hwdge", "none"),
    "what generates the DMA descriptors; values do not depend on it",
)
_OOB = choice("oob_mode", ("error", "skip"), "what an out-of-bounds index causes")
_PRIORITY = note(
    "priority", "DMA service class, 0 (highest) to 3; from NeuronCore-v4", "int | None"
)


_SELECTIONS = (
    lanes(
        "tensor_copy_predicated",
        "vector",
        "dst, src, predicate, reverse_pred=False, name=None",
        "dst = src where the predicate is not 0; elsewhere dst is unchanged.",
        out(),
        tensor("src", or_number=True, like="dst"),
        tensor("predicate", dtypes=_PREDICATES, like="dst"),
        flag("reverse_pred", "whether to copy where the predicate is 0 instead"),
        one_in_psum=(0, 1),
        gathered=(1,),
        reads_outputs=True,
    ),
    lanes(
        "select_reduce",
        "vector",
        "dst, predicate, on_true, on_false, reduce_res=None, "
        "reduce_cmd=reduce_cmd.idle, reduce_op='maximum', reverse_pred=False, "
        "name=None",
        "dst = on_true where the predicate is not 0, else on_false. The "
        "accumulators can take the maximum of dst.",
        out(),
        tensor("predicate", dtypes=_SELECTORS, like="dst"),
        tensor(
            "on_true",
            never=("tfloat32", "int32", "uint32"),
            text="any dtype but tfloat32, int32 and uint32",
            like="dst",
        ),
        column("on_false"),
        flag("reverse_pred", "whether to negate the predicate"),
        command("idle reset_reduce reduce"),
        checked("reduce_op", MAXIMUM),
        state("reduce", optional=True),
        result(),
        one_in_psum=(0, 1),
    ),
    lanes(
        "range_select",
        "vector",
        "dst, on_true_tile, comp_op0, comp_op1, bound0, bound1, "
        "reduce_cmd=reduce_cmd.reset_reduce, reduce_res=None, reduce_op='maximum', "
        "range_start=0, on_false_value=FP32_MIN, name=None",
        "dst = on_true_tile where index <comp_op0> bound0 and index <comp_op1> "
        "bound1.\n\nElsewhere dst is FP32_MIN.",
        out(),
        tensor("on_true_tile", like="dst"),
        tensor("bound0", elements=1, dtypes=("float32",)),
        tensor("bound1", elements=1, dtypes=("float32",)),
        integer("range_start", "index of the first element of the free axis"),
        operator("comp_op0", _ORDERS),
        operator("comp_op1", _ORDERS),
        command("idle reset reset_reduce reduce"),
        checked("reduce_op", MAXIMUM),
        note("on_false_value", "must be FP32_MIN", "float"),
        state("reduce", optional=True),
        result(),
        capability="range_select",
        instead="nisa.affine_select",
    ),
    lanes(
        "affine_select",
        "gpsimd",
        "dst, pattern, channel_multiplier, on_true_tile, on_false_value, "
        "cmp_op='equal', offset=0, name=None",
        "dst = on_true_tile where the pattern's value <cmp_op> 0, else on_false_value.",
        out("dst", SBUF),
        tensor("on_true_tile", SBUF, like="dst"),
        number("on_false_value"),
        *pattern(),
        operator("cmp_op", _ORDERS | {"not_equal"}),
    ),
)

_MOVEMENT = (
    lanes(
        "tensor_copy",
        "vector scalar gpsimd",
        "dst, src, engine=engine.unknown, name=None, dtype=None",
        "dst = src on chip, converted by way of FP32 if the dtypes differ.",
        out(),
        tensor("src", like="dst"),
        ENGINE,
        note("dtype", "the dtype of dst, or None; for kernels of earlier releases"),
        gathered=(0,),
        gathering_engines=("vector", "scalar"),
    ),
    row(
        "memset",
        "vector gpsimd",
        "dst, value, engine=engine.unknown, name=None",
        "Fills a tile with a number.",
        out("dst", ()),
        number("value", "must be an integer for an integer tile, 0 for a packed dtype"),
        ENGINE,
    ),
    row(
        "iota",
        "gpsimd",
        "dst, pattern, offset=0, channel_multiplier=0, name=None",
        "dst = offset + partition * channel_multiplier + sum of index * step, in "
        "32-bit ints.",
        out("dst", SBUF),
        *pattern(),
    ),
    lanes(
        "dma_copy",
        "dma",
        "dst, src, priority=None, oob_mode=oob_mode.error, dge_mode=dge_mode.unknown, "
        "engine=engine.unknown, name=None",
        "dst = src, by the DMA engines, converted by way of FP32 if the dtypes differ.",
        out("dst", ()),
        tensor("src", (), text="as many elements as dst"),
        _OOB,
        _DGE,
        note("engine", "the engine that generates the DMA descriptors"),
        _PRIORITY,
    ),
    row(
        "dma_transpose",
        "dma",
        "dst, src, axes=None, priority=None, dge_mode=dge_mode.unknown, "
        "oob_mode=oob_mode.error, name=None",
        "dst = src with its axes permuted: (1, 0), (2, 1, 0) or (3, 1, 2, 0).",
        out("dst", SBUF, text="of src's dtype", dtype_of="src"),
        tensor("src", OFF_PSUM, text="may be gathered by a vector of indices"),
        note(
            "axes",
            "None, or (1, 0), (2, 1, 0) or (3, 1, 2, 0), by the rank of src",
            "Sequence[int] | None",
        ),
        _DGE,
        _OOB,
        _PRIORITY,
        reads="part",  # unwritten rows become unwritten columns
    ),
    row(
        "dma_compute",
        "dma",
        "dst, srcs, reduce_op, scales=None, unique_indices=True, "
        "oob_mode=oob_mode.error, name=None",
        "dst = the sum of up to 16 tensors, in FP32, on the way through the DMA "
        "engines.\n\nWith a vector of indices on dst (scatter) or on one source "
        "(gather), the elements that the indices name are read, added and written.",
        out("dst", OFF_PSUM),
        tensor(
            "srcs",
            OFF_PSUM,
            text="1 to 16 tensors, each with as many elements as dst",
            type="Sequence[NkiTensor]",
        ),
        checked("reduce_op", ADD),
        note("scales", "all 1.0, or None", "Sequence[float] | None"),
        note("unique_indices", "must be True: equal indices are not supported", "bool"),
        _OOB,
        label="modelled",
    ),
    row(
        "nc_stream_shuffle",
        "vector",
        "dst, src, shuffle_mask, name=None",
        "Within each quadrant of 32 partitions, dst[p] = src[shuffle_mask[p]].",
        out(dtype_of="src"),
        tensor("src", text="of dst's dtype, as many elements per partition as dst"),
        note(
            "shuffle_mask",
            "32 integers from 0 to 31; 255 leaves a partition of dst unchanged",
            "Sequence[int]",
        ),
        keeps=True,
    ),
    row(
        "local_gather",
        "gpsimd",
        "dst, src_buffer, index, num_elem_per_idx=1, num_valid_indices=None, name=None",
        "Gathers within every partition, by indices that 16 partitions share.",
        out("dst", SBUF, text="of src_buffer's dtype", dtype_of="src_buffer"),
        tensor("src_buffer", SBUF, text="a multiple of 16 partitions"),
        tensor("index", SBUF, dtypes=("uint16",), text="read column by column"),
        note(
            "num_elem_per_idx", "contiguous elements per index: 1, 2, 4, ... 32", "int"
        ),
        note(
            "num_valid_indices",
            "how many indices per 16 partitions are used; None for all",
            "int | None",
        ),
        reads="part",
    ),
    row(
        "nc_n_gather",
        "gpsimd",
        "dst, data, indices, name=None",
        "Gathers within every partition, by the indices in that partition.",
        out("dst", SBUF),
        tensor("data", SBUF, text="of dst's dtype; its free dimensions count as one"),
        tensor("indices", SBUF, dtypes=("uint32",), like="dst"),
        reads="part",
    ),
    row(
        "sequence_bounds",
        "gpsimd",
        "dst, segment_ids, name=None",
        "The start and the end of the segment of every element.",
        out("dst", SBUF, dtypes=_IDS, text="(1, 2, n): starts, then ends"),
        tensor("segment_ids", SBUF, dtypes=_IDS, text="(1, n); 0 is padding"),
    ),
    row(
        "nonzero_with_count",
        "gpsimd",
        "dst, src, index_offset=0, padding_val=-1, name=None",
        "Indices and number of nonzero elements, in partitions 0, 16, 32, ...",
        out(
            "dst",
            SBUF,
            dtypes=("int32",),
            text="one element more per partition than src; only partitions 0, 16, 32, "
            "... are written",
        ),
        tensor("src", SBUF, dtypes=_IDS),
        integer("index_offset", "added to every index"),
        integer("padding_val", "fills dst between the last index and the count"),
        capability="nonzero_with_count",
        reads="part",
        reads_outputs=True,
        keeps=True,
    ),
    row(
        "topk",
        "gpsimd",
        "val_dst, idx_dst, src, n, name=None",
        "The k largest elements of every 16 partitions, ascending, and their indices.",
        out("val_dst", SBUF, dtypes=("bfloat16",), text="(partitions, k)"),
        out("idx_dst", SBUF, dtypes=("uint32",), like="val_dst"),
        tensor(
            "src",
            SBUF,
            dtypes=("bfloat16",),
            text="elements 0 to 15 are column 0 of 16 partitions, and so on",
        ),
        note("n", "elements to search in every 16 partitions, 8 to 65,535", "int"),
        reads="part",
    ),
    lanes(
        "quantize_mx",
        "vector",
        "dst, src, dst_scale, name=None",
        "Quantizes groups of 32 elements to MXFP8: elements and one scale per "
        "group.\n\nThe scale is 2^(floor(log2 amax) - (emax - 1)), twice that of OCP "
        "MX, so that no element saturates. ASSUMPTION: a group with a NaN or an Inf "
        "gets the NaN scale.",
        out("dst", SBUF, dtypes=FP8_X4, text="[P, F / 4]"),
        out(
            "dst_scale",
            SBUF,
            dtypes=SCALES,
            text="[P, F / 4], with fewer partitions if the tile starts at partition "
            "4, 8 or 12 of a quadrant; if P is 32, [4, F / 4] is legal too",
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
        "dst, engine=engine.vector, name=None",
        "dst = random bits. From NeuronCore-v3 on, GpSimd can draw too, into SBUF.",
        out(dtypes=_INTEGERS),
        ENGINE,
        state("random"),
        label="modelled",
    ),
    row(
        "rand2",
        "vector",
        "dst, min, max, name=None",
        "dst = uniform numbers between min and max.",
        out(),
        column("min"),
        column("max", "larger than min"),
        state("random"),
        label="modelled",
        capability="xorwow",
        instead="nisa.rng",
    ),
    row(
        "dropout",
        "vector",
        "dst, data, prob, name=None",
        "dst = data, where each element becomes 0 with probability prob.",
        out(text="of data's dtype", dtype_of="data"),
        tensor("data", like="dst"),
        column("prob", "1 makes every element 0"),
        state("random"),
        label="modelled",
    ),
    row(
        "set_rng_seed",
        "vector",
        "src_seeds, name=None",
        "Seeds VectorE's generators.",
        state("random", "output"),
        tensor("src_seeds", dtypes=_WORD, text="(1, 1)"),
        label="modelled",
    ),
    row(
        "rand_set_state",
        "vector gpsimd",
        "src_seeds, engine=engine.gpsimd, name=None",
        "Sets the state of an engine's generators, one row per lane.\n\nVectorE "
        "has such a state from NeuronCore-v4 on.",
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
        "dst, engine=engine.gpsimd, name=None",
        "dst = the state of an engine's generators, one row per lane.\n\nVectorE "
        "has such a state from NeuronCore-v4 on.",
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
        "data, cores, engine=engine.gpsimd, name=None",
        "Each core waits here for the other core.\n\nThe documents require data in "
        "shared HBM. Kernels of the vendor's library also give an SBUF tile, so SBUF "
        "is accepted.",
        tensor("data", ("shared_hbm", "sbuf"), role="none", text="shared by the cores"),
        note("cores", "(0, 1); in a launch of one core also (0,)"),
        note("engine", "the engine that waits"),
        capability="core_barrier",
    ),
    row(
        "sendrecv",
        "dma",
        "src, dst, send_to_rank, recv_from_rank, pipe_id, dma_engine=dma_engine.dma, "
        "name=None",
        "Sends a tile to a core, and receives a tile of the same shape.",
        tensor("src", SBUF),
        out(
            "dst",
            SBUF,
            text="of the received tile's shape and dtype; must not overlap src",
        ),
        note("send_to_rank", "0 or 1", "int"),
        note("recv_from_rank", "0 or 1", "int"),
        note("pipe_id", "both cores must pass the same ids in the same order", "int"),
        note(
            "dma_engine",
            "`dma`, or `gpsimd_dma` for up to 1024, 512 or 256 bytes per partition, if "
            "elements have 32, 16 or 8 bits",
        ),
        capability="core_barrier",
        reads="part",
    ),
    row(
        "register_alloc",
        "sync",
        "x=None",
        "A register, which holds x if x is not None.",
        note("x", "an int, or None", "int | None"),
        returns="VirtualRegister",
        runs=False,
    ),
    row(
        "register_load",
        "sync",
        "dst, src",
        "dst = the one element of src.",
        note("dst", "a register", "VirtualRegister"),
        note("src", "a tensor of one element", "NkiTensor"),
        returns="None",
    ),
    row(
        "register_move",
        "sync",
        "dst, src",
        "dst = src, an int or a register.",
        note("dst", "a register", "VirtualRegister"),
        note("src", "an int or a register", "int | VirtualRegister"),
        returns="None",
    ),
    row(
        "register_store",
        "sync",
        "dst, src",
        "Writes src to the one element of dst.",
        note("dst", "a tensor of one element", "NkiTensor"),
        note("src", "a register", "VirtualRegister"),
        returns="None",
    ),
)


MOVING = (*_SELECTIONS, *_MOVEMENT, *_RANDOM, *_SEQUENCERS)
