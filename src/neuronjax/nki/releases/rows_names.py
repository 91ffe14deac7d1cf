"""Names and keywords that came and went, by release.

Sources, in the repository aws-neuron-sdk: "RN x" is the section of release x in
release-notes/components/nki.rst, "API x" the API reference of its tag (nki/api),
"guide" nki/migration/index.rst. Where the notes do not list the names of a release the
references of two tags are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from neuronjax.nki.releases.difference import ReleaseDifference, When

_NL, _NISA, _CC = "nki.language.", "nki.isa.", "nki.collectives."
_API_227 = "API 2.26, API 2.27, RN 2.27"
_API_229 = "API 2.28, API 2.29, RN 0.3"


def _named(prefix: str, names: str) -> list[str]:
    return [prefix + name for name in names.split()]


def _came(
    release: str, names: list[str], source: str, remedy: str = ""
) -> list[ReleaseDifference]:
    return [
        ReleaseDifference(
            name=name, kind="absent", until=release, source=source,
            what=f"is not there before {release}",
            remedy=remedy or f"take {release} or newer, or do without it",
        )
        for name in names
    ]  # fmt: skip


def _went(
    release: str, names: list[str], source: str, remedy: str, back: str = ""
) -> list[ReleaseDifference]:
    """Those that come back were operators all the time: their calls went."""
    what = f"was removed in {release}"
    what = f"is no function from {release} on and before {back}" if back else what
    return [
        ReleaseDifference(
            name=name, kind="removed", since=release, until=back, what=what,
            remedy=remedy, source=source, when=When(called=bool(back)),
        )
        for name in names
    ]  # fmt: skip


def _new_keywords(
    release: str, prefix: str, keywords: Mapping[str, str], source: str
) -> Iterator[ReleaseDifference]:
    """Keyword -> the functions that took it from a release on."""
    for keyword, names in keywords.items():
        for name in _named(prefix, names):
            yield ReleaseDifference(
                name=name, kind="absent", until=release, source=source,
                what=f"takes no {keyword}= before {release}",
                remedy=f"leave {keyword}= out, or take {release} or newer",
                when=When(keyword=keyword),
            )  # fmt: skip


def _old_keyword(
    release: str, name: str, keyword: str, source: str, remedy: str
) -> ReleaseDifference:
    return ReleaseDifference(
        name=name, kind="removed", since=release, source=source, remedy=remedy,
        what=f"takes no {keyword}= since {release}",
        when=When(keyword=keyword),
    )  # fmt: skip


_BETAS = (
    *_came(
        "neuronxcc-2.21",
        _named(
            _NISA,
            "activation_reduce tensor_partition_reduce scalar_tensor_tensor "
            "tensor_scalar_reduce tensor_copy tensor_copy_dynamic_src dma_copy "
            "nc_version get_nc_version",
        )
        + _named(
            _NL,
            "shared_identity_matrix tan silu silu_dx left_shift right_shift ds "
            "spmd_dim nc float8_e5m2",
        ),
        "RN 2.21",
    ),
    *_came(
        "neuronxcc-2.22",
        _named(
            _NISA,
            "tensor_copy_dynamic_dst tensor_copy_predicated max8 nc_find_index8 "
            "nc_match_replace8 nc_stream_shuffle engine",
        )
        + _named(_NL, "mod fmod reciprocal broadcast_to empty_like")
        + ["nki.profile"],
        "RN 2.22",
    ),
    *_came("neuronxcc-2.23", [f"{_NISA}range_select"], "RN 2.23"),
    *_new_keywords(
        "neuronxcc-2.23", _NISA,
        {"dge_mode": "dma_copy", "oob_mode": "dma_copy", "dst_rmw_op": "dma_copy",
         "reverse_pred": "tensor_copy_predicated"},
        "RN 2.23, API 2.26",
    ),
    *_came("neuronxcc-2.24", [f"{_NL}gather_flattened"], "RN 2.24"),
    *_new_keywords(
        "neuronxcc-2.24", _NISA, {"dst_idx": "nc_match_replace8"}, "RN 2.24"
    ),
    *_came(
        "neuronxcc-2.26",
        [
            f"{_NL}gelu_apprx_sigmoid",
            f"{_NL}tile_size.total_available_sbuf_size",
            f"{_NISA}select_reduce",
            f"{_NISA}sequence_bounds",
        ],
        "RN 2.26",
    ),
    *_new_keywords(
        "neuronxcc-2.26", _NISA, {"axes": "dma_transpose", "dge_mode": "dma_transpose"},
        "RN 2.26",
    ),
)  # fmt: skip

_RELEASE_227 = (
    *_came(
        "2.27",
        _named(
            _NISA,
            "core_barrier dma_compute matmul_perf_mode nc_matmul_mx nc_n_gather "
            "quantize_mx rand2 rand_get_state rand_set_state register_alloc "
            "register_load register_move register_store rng sendrecv set_rng_seed "
            "tensor_scalar_cumulative",
        )
        + _named(_NL, "NKIObject float4_e2m1fn_x4 float8_e4m3fn_x4 float8_e5m2_x4"),
        _API_227,
    ),
    *_went(
        "2.27",
        _named(
            _NL,
            "all_reduce arange atomic_rmw finfo fp32 gemm_grid gemm_stationary_grid "
            "loop_reduce mgrid nc spmd_dim static_cast",
        ),
        f"{_API_227}, guide",
        "index with slices or .ap(), tile with lists or free dimensions, add with "
        "nisa instructions",
    ),
    *_went(
        "2.27",
        _named(_NISA, "builtin_custom_op fp32"),
        _API_227,
        "use the instructions of nki.isa",
    ),
    *_went(
        "2.27",
        _named("nki.", "benchmark profile simulate_kernel"),
        f"{_API_227}, RN 0.2",
        "call the kernel, or nki.simulate(kernel) from 0.3 on; neuron-profile times it",
    ),
    *_went(
        "2.27",
        _named(
            _NL,
            "all arctan broadcast_to ceil copy cos dropout empty_like erf erf_dx exp "
            "expand_dims floor fmod full gelu gelu_apprx_tanh gelu_dx load "
            "load_transpose2d log matmul max mean min mish mod negative ones prod "
            "rand random_seed relu rms_norm sigmoid sign silu silu_dx sin softmax "
            "softplus sqrt square store sum tan tanh transpose trunc var where "
            "zeros_like gather_flattened",
        ),
        f"{_API_227}, API 2.29, guide",
        "nisa.dma_copy loads and stores, nisa instructions compute",
        back="0.3",
    ),
    *(
        _old_keyword(
            "2.27", name, "mask", "RN 2.27, guide",
            "bound the slices: t[p:min(p + 128, size)]",
        )
        for name in (f"{_NISA}*", f"{_NL}*")
    ),
    *(
        _old_keyword(
            "2.27", f"{_NISA}{name}", "dtype", "RN 2.27", "the dtype of dst decides"
        )
        for name in (
            "activation activation_reduce affine_select bn_aggr bn_stats "
            "dma_transpose dropout iota max8 memset nc_find_index8 nc_match_replace8 "
            "nc_stream_shuffle nc_transpose range_select reciprocal "
            "scalar_tensor_tensor select_reduce sequence_bounds "
            "tensor_copy_dynamic_dst tensor_copy_dynamic_src tensor_copy_predicated "
            "tensor_partition_reduce tensor_reduce tensor_scalar tensor_scalar_reduce "
            "tensor_tensor tensor_tensor_scan"
        ).split()
    ),
    *_new_keywords("2.27", _NL, {"address": "ndarray"}, "guide, nki-library 2.27"),
    *_new_keywords(
        "2.27", _NISA,
        {"name": "activation dma_copy nc_matmul tensor_copy tensor_scalar "
                 "tensor_tensor", "perf_mode": "nc_matmul"},
        _API_227,
    ),
)  # fmt: skip

_RELEASE_02 = (
    *_came(
        "0.2",
        _named(_NISA, "exponential nonzero_with_count")
        + _named(_NL, "float8_e4m3fn gelu_apprx_sigmoid_dx no_reorder")
        + _named(
            _CC,
            "ReplicaGroup all_gather all_reduce all_to_all collective_permute "
            "collective_permute_implicit "
            "collective_permute_implicit_current_processing_rank_id "
            "collective_permute_implicit_reduce rank_id reduce_scatter",
        ),
        "RN 0.2, API 2.28",
    ),
    *_new_keywords(
        "0.2", _NISA, {"oob_mode": "dma_transpose"}, "API 2.27, API 2.28"
    ),
    _old_keyword(
        "0.2", f"{_NISA}nc_matmul", "psumAccumulateFlag", "RN 0.2",
        "leave it out: it had no effect",
    ),
)  # fmt: skip

_RELEASE_03 = (
    *_came(
        "0.3",
        [
            f"{_CC}all_to_all_v",
            f"{_NISA}VirtualRegister",
            *_named(
                _NL, "NkiTensor MemoryRegion is_hbm is_on_chip is_psum is_sbuf"
            ),
            "nki.simulate",
            "nki.typing",
        ],
        _API_229,
    ),
    *_new_keywords(
        "0.3", _NISA,
        {"accumulate": "nc_matmul nc_matmul_mx", "engine": "dma_copy",
         "unique_indices": "dma_compute", "dma_engine": "sendrecv",
         "src": "register_move",
         "name": "exponential nonzero_with_count tensor_scalar_cumulative"},
        _API_229,
    ),
    *_new_keywords("0.3", _NL, {"dst": "shared_identity_matrix"}, _API_229),
    _old_keyword(
        "0.3", f"{_NISA}tensor_copy", "dtype", "RN 2.27, samples#120",
        "the dtype of dst decides",
    ),
    _old_keyword(
        "0.3", f"{_NISA}dma_copy", "dst_rmw_op", "RN 0.3, guide",
        "nisa.dma_compute(dst, [src], reduce_op=nl.add)",
    ),
    _old_keyword(
        "0.3", f"{_NISA}dma_copy", "unique_indices", "RN 0.3, guide",
        "nisa.dma_compute takes it",
    ),
    _old_keyword(
        "0.3", f"{_NISA}sendrecv", "use_gpsimd_dma", "RN 0.3, guide",
        "dma_engine=nisa.dma_engine.gpsimd_dma, or .dma for False",
    ),
    _old_keyword(
        "0.3", "nki.jit", "platform_target", "RN 0.3, guide",
        "set NEURON_PLATFORM_TARGET_OVERRIDE in the environment",
    ),
    _old_keyword(
        "0.3",
        f"{_CC}collective_permute_implicit_current_processing_rank_id",
        "num_channels", "RN 0.3, guide",
        "channel_ids=[...] of collective_permute_implicit",
    ),
)  # fmt: skip

_RELEASE_04 = (
    *_came(
        "0.4",
        [
            f"{_NISA}activate2",
            *_named(_NL, "abs_max abs_min bypass prelu"),
            *_named(
                f"{_NL}tile_size.",
                "sbuf_size_bytes sbuf_fmax sbuf_fmax_bytes psum_bank_fmax "
                "psum_bank_fmax_bytes",
            ),
        ],
        "RN 0.4",
    ),
    *_went(
        "0.4",
        _named(_NISA, "tensor_copy_dynamic_src tensor_copy_dynamic_dst"),
        "RN 0.4, guide",
        "nisa.tensor_copy with t.ap(..., scalar_offset=...)",
    ),
    *_new_keywords(
        "0.4", _NISA,
        {"oob_mode": "dma_compute", "priority": "dma_copy dma_transpose",
         "reduce_cmd": "tensor_scalar_reduce", "reduce_init": "tensor_scalar_reduce"},
        "RN 0.4, API 2.29, API 2.30",
    ),
    *_new_keywords(
        "0.4", _CC,
        {"priority": "all_gather all_reduce all_to_all all_to_all_v "
                     "collective_permute collective_permute_implicit "
                     "collective_permute_implicit_reduce reduce_scatter"},
        "API 2.29, API 2.30",
    ),
)  # fmt: skip

_RELEASE_05 = (
    *_came(
        "0.5",
        [
            *_named(_NL, "float8_e8m0fnu average"),
            f"{_NISA}get_nc_sub_version",
            *_named(
                f"{_NL}NkiTensor.",
                "slice select permute broadcast expand_dim squeeze_dim reshape_dim "
                "flatten_dims rearrange vector_select is_contiguous is_indirect "
                "indirect reinterpret_cast",
            ),
        ],
        "RN 0.5, API 2.30, API 2.31",
    ),
    *_new_keywords(
        "0.5", _CC,
        {"name": "all_gather all_reduce all_to_all all_to_all_v collective_permute "
                 "collective_permute_implicit collective_permute_implicit_reduce "
                 "reduce_scatter rank_id"},
        "RN 0.5",
    ),
    _old_keyword(
        "0.5", f"{_NL}NkiTensor.reshape", "new_shape", "API 2.30, API 2.31",
        "t.reshape(shape)",
    ),
)  # fmt: skip

_RELEASE_06 = (
    *_came(
        "0.6",
        [f"{_CC}all_gather_v", f"{_NISA}topk"],
        "RN 0.6",
    ),
    *_came(
        "0.6",
        [f"{_NL}fori_loop", f"{_NL}while_loop"],
        "RN 0.6",
        "nl.dynamic_range, or `while register:`",
    ),
    *_new_keywords(
        "0.6", _NISA, {"reduce_res_negate": "tensor_scalar_reduce"},
        "API 2.31, API 2.32",
    ),
)  # fmt: skip

NAMES: tuple[ReleaseDifference, ...] = (
    *_BETAS, *_RELEASE_227, *_RELEASE_02, *_RELEASE_03, *_RELEASE_04, *_RELEASE_05,
    *_RELEASE_06,
)  # fmt: skip
