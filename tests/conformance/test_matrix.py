"""Whole programs: compiled = op by op, over programs, policies and chips, bit for bit.

Every output leaf counts, parameters and optimizer states included. Chips whose
instructions are equal share one run, and that they are equal is asserted.
`make test` and `make slow` run `SELECTED`, `make matrix` the rest. Equal bits
could be equal nonsense, so results are also held loosely against the host's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import neuronjax as nj
from neuronjax.hardware import CHIPS, resolve_target
from neuronjax.ir.text import instruction_text
from neuronjax.lowering import lower
from tests.conformance import bits
from tests.zoo import PROGRAMS

TARGETS = tuple(CHIPS)
#: What chips without a datapath say; other refusals are of a declared dtype.
REFUSALS = {
    "mxfp8": "has no microscaling",
    "mxfp4": "has no microscaling",
    "sparse": "has no structured sparsity",
}

#: What NeuronCore-v1 says of operands, casts, ops and random bits that it has not.
OLDEST = "inf1 has no|does not exist on inf1|inf1 computes|inf1 multiplies"

#: Policies that change contractions alone: an MLP's and a GPT's suffice.
DATAPATHS = {"mxfp8", "mxfp4", "sparse"}

#: Program -> policies of `make test`: the programs that compile fast, every family
#: under every policy. The others add train steps of the same operations.
SELECTED: Mapping[str, tuple[str, ...]] = {
    "mlp_sgd": ("bf16", "mxfp4", "sparse"),
    "mlp_linen_adam": ("fp16",),
    "mlp_mixed_bf16_sgd": ("tf32",),
    "mlp_forward": ("fp32", "fp8", "bf16_stochastic", "bf16_all", "mxfp8"),
    "gpt_forward": ("bf16",),
    "gpt_scan_forward": tuple(
        p for p in bits.POLICIES if p not in ("bf16", "mxfp4", "sparse")
    ),
    "cnn_forward": tuple(p for p in bits.POLICIES if p not in DATAPATHS),
    "transform_custom_vjp": ("bf16_all",),
    "transform_custom_jvp": ("bf16_stochastic",),
    "transform_cond": ("fp32",),
    "transform_switch": ("bf16",),
    "transform_cond_in_scan": ("bf16_stochastic",),
    "transform_fori_loop": ("bf16_all",),
    "transform_prefixes": ("fp32",),
    "transform_one_hot_cross_entropy": ("bf16_stochastic",),
    "transform_softmax": ("bf16_all",),
    "transform_layer_norm": ("fp32",),
    "transform_activations": ("fp32",),
    "transform_elementwise": ("fp32",),
    "transform_shapes": ("fp32",),
    "transform_contractions": ("fp8",),
    "transform_second_order": ("fp16",),
    "transform_while_loop": ("fp32",),
    "transform_while_batched": ("bf16_stochastic",),
    "transform_sort": ("fp32",),
    "transform_reductions": ("bf16_all",),
    "transform_rounding": ("fp32",),
    "transform_scatters": ("fp32",),
    "transform_low_precision": ("bf16",),
    "transform_integer": ("fp32",),
    "transform_random_threefry2x32": ("fp32",),
    "transform_random_rbg": ("fp32",),
    "transform_random_typed_key": ("bf16",),
    "transform_embedding": ("bf16_stochastic",),
    "transform_decode": ("tf32",),
}
#: What `make test` leaves out: more train steps of models that it runs.
VARIANTS = {
    "mlp_adam", "mlp_adamw", "mlp_lion", "mlp_adafactor", "mlp_bf16_adam",
    "gpt_adam", "gpt_adamw_clip_cosine", "gpt_remat", "gpt_scan", "gpt_scan_remat",
    "gpt_bf16", "cnn_sgd_momentum", "lstm_lion", "moe_indexed_adafactor",
    "gpt_dropout_threefry2x32", "gpt_dropout_rbg",
    "mamba_scan_adam", "mamba_associative_adam", "moe_masked_adafactor",
}  # fmt: skip
FAMILIES = {
    "mlp": ("mlp",),
    "gpt": ("gpt",),
    "convolutions, recurrences, mixtures": ("cnn", "lstm", "mamba", "moe"),
    "transform": ("transform",),
}

#: Largest relative error of an output leaf against the host: far above what any
#: program shows, far below nonsense.
TOLERANCE = {
    "fp32": 1e-3,
    "tf32": 0.02,
    "fp16": 0.02,
    "bf16": 0.3,
    "bf16_stochastic": 0.3,
    "bf16_all": 0.5,
    "fp8": 0.8,
    "mxfp8": 0.8,
    "mxfp4": 1.2,
}
#: For programs that themselves declare 16-bit floats.
NARROW_TOLERANCE = 0.1

#: Leaves that a policy itself makes nonsense, not the emulator: rounded to BF16, the
#: uniform numbers in (-1, 1) that normal ones are made of reach 1; erf_inv(1) is Inf.
NONSENSE = {("random", "bf16_all"): "normal"}

cheap = {"xla_backend_optimization_level": 0}
matrix = pytest.mark.matrix


@functools.cache
def make(name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """(function, arguments): the same objects, so that nothing is traced twice."""
    return PROGRAMS[name].make(0)


@functools.cache
def native(name: str) -> Any:
    """What the host returns; without LLVM's optimizations, for they cost most."""
    function, args = make(name)
    return jax.jit(function, compiler_options=cheap)(*args)


@functools.cache
def captured(name: str) -> Any:
    """The StableHLO program, which no chip and no policy changes."""
    function, args = make(name)
    return nj.jit(function, target="trn3").lower(*args).program


def instructions(name: str, policy: str, target: str) -> str:
    """The instructions as text, or the error that says why there are none."""
    try:
        program = lower(
            captured(name), target=resolve_target(target), policy=bits.POLICIES[policy]
        )
    except nj.UnsupportedError as error:
        return f"UnsupportedError: {error.what.replace(target, '')}"
    return instruction_text(program)


def chips(name: str, policy: str) -> list[tuple[str, ...]]:
    """The chips, those of equal instructions together."""
    groups: dict[str, list[str]] = {}
    for target in TARGETS:
        groups.setdefault(instructions(name, policy, target), []).append(target)
    return [tuple(group) for group in groups.values()]


@functools.cache
def verified(name: str, policy: str, target: str) -> Any:
    """What the emulator returns, once it is known to be the same op by op."""
    function, args = make(name)
    step = bits.emulated(function, policy, target)
    return bits.same_both_ways(step, *args, what=f"{name} {policy} {target}")


def check(name: str, policy: str, target: str) -> None:
    """Compiled = op by op, and close to the host."""
    text = instructions(name, policy, target)
    if text.startswith("UnsupportedError"):
        expected = REFUSALS.get(policy, r"float8_e4m3fn .* on ")
        if target == "inf1":
            expected = rf"{expected}|{OLDEST}"
        function, args = make(name)
        with pytest.raises(nj.UnsupportedError, match=expected):
            bits.emulated(function, policy, target)(*args)
        return
    outputs = verified(name, policy, target)
    if policy == "sparse":  # three quarters of untrained weights are gone
        return
    tolerance = TOLERANCE[policy]
    if "bf16" in name or "low_precision" in name or "random" in name:
        tolerance = max(tolerance, NARROW_TOLERANCE)
    nonsense = [n for (part, p), n in NONSENSE.items() if part in name and p == policy]
    errors = bits.relative_errors(outputs, native(name))
    wrong = {path: e for path, e in errors.items() if not e <= tolerance}
    assert [path for path in wrong if not any(n in path for n in nonsense)] == []


def cases(table: Mapping[str, tuple[str, ...]]) -> list[Any]:
    return [
        pytest.param(name, policy, id=f"{name}-{policy}")
        for name, policies in table.items()
        for policy in policies
    ]


# ---- Compiled = op by op.


@pytest.mark.slow_except("transform_while_loop-fp32")
@pytest.mark.parametrize(("name", "policy"), cases(SELECTED))
def test_compiled_equals_op_by_op(name, policy):
    """On every chip; the runs are those of the chips that differ."""
    for group in chips(name, policy):
        check(name, policy, group[0])


REST = {
    name: tuple(p for p in bits.POLICIES if p not in SELECTED.get(name, ()))
    for name in PROGRAMS
}


@matrix
@pytest.mark.parametrize(("name", "policy"), cases(REST))
def test_compiled_equals_op_by_op_in_full(name, policy):
    """All that `test_compiled_equals_op_by_op` leaves out."""
    for group in chips(name, policy):
        check(name, policy, group[0])


def test_the_selection_covers_programs_families_and_policies():
    assert set(SELECTED) | VARIANTS == set(PROGRAMS)
    for prefixes in FAMILIES.values():
        names = [n for n in SELECTED if n.split("_")[0] in prefixes]
        assert {p for n in names for p in SELECTED[n]} >= set(bits.POLICIES) - DATAPATHS
    assert {p for policies in SELECTED.values() for p in policies} == set(bits.POLICIES)


@pytest.mark.slow_cases("fp32", "bf16", "fp16", "tf32", "fp8", "bf16_stochastic")
@pytest.mark.parametrize("policy", bits.POLICIES)
def test_chips_that_share_a_run(policy):
    """Trainium1 is Inferentia2, and FP8 alone tells the later chips apart."""
    names = ["mlp_forward", "gpt_forward", "cnn_forward", "moe_indexed_adafactor"]
    for name in names:
        groups = chips(name, policy)
        assert [g for g in groups if "trn1" in g and "inf2" in g], groups
        if policy not in ("fp8", "mxfp8", "mxfp4"):
            assert [g for g in groups if "trn2" in g and "trn3" in g], groups


# ---- The same bits however the program is embedded.

TRAIN = [
    "mlp_sgd",
    *(
        pytest.param(name, marks=matrix)
        for name in ("cnn_sgd_momentum", "gpt_scan", "moe_indexed_adafactor")
    ),
]


# Three layers, GELU and tanh; a train step adds the backward pass, and compiles longer.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp_forward", *TRAIN])
def test_in_an_outer_jit_with_other_arithmetic_around(name):
    function, args = make(name)
    step = bits.emulated(function, "bf16")
    floats = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)  # noqa: E731

    def program(*args):
        doubled = jax.tree.map(lambda x: x * 2 if floats(x) else x, args[-2])
        outputs = step(*args[:-2], doubled, args[-1])
        return outputs, jax.tree.map(lambda x: x + 1 if floats(x) else x, outputs)

    doubled = jax.tree.map(lambda x: x * 2 if floats(x) else x, args[-2])
    expected = bits.op_by_op(step, *args[:-2], doubled, args[-1])
    bits.assert_same(jax.jit(program)(*args)[0], expected, name)


def carried(name: str) -> int:
    """How many leading arguments of a train step are its leading results."""
    function, args = make(name)
    outputs = jax.eval_shape(function, *args)
    count = 0
    for before, after in zip(args, outputs, strict=False):
        if bits.shapes(before) != bits.shapes(after):
            break
        count += 1
    return count


@pytest.mark.slow_cases("mlp_sgd")
@pytest.mark.parametrize("name", TRAIN)
def test_two_steps_in_a_scan(name):
    function, args = make(name)
    step, count = bits.emulated(function, "bf16"), carried(name)
    state, batch = args[:count], args[count:]
    assert state

    def scanned(state, batch):
        def body(state, _):
            outputs = step(*state, *batch)
            return outputs[:count], outputs[count:]

        return jax.lax.scan(body, state, None, length=2)

    final, losses = jax.jit(scanned)(state, batch)
    expected = []
    for _ in range(2):
        outputs = bits.op_by_op(step, *state, *batch)
        state = outputs[:count]
        expected.append(outputs[count:])
    bits.assert_same(final, state, f"{name} final state")
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *expected)
    bits.assert_same(losses, stacked, f"{name} losses")


@pytest.mark.slow_cases("mlp_sgd")
@pytest.mark.parametrize("name", TRAIN)
def test_under_vmap_over_two_batches(name):
    function, args = make(name)
    count = carried(name)
    batch = [jnp.stack([x, x[::-1] if x.ndim else x]) for x in args[count:]]
    axes = (*[None] * count, *[0] * len(batch))
    step = jax.vmap(bits.emulated(function, "bf16"), in_axes=axes)
    bits.same_both_ways(step, *args[:count], *batch, what=name)


@pytest.mark.slow_cases("mlp_forward-fp8")
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("mlp_forward", "fp8"),
        pytest.param("cnn_forward", "bf16_stochastic", marks=matrix),
        pytest.param("gpt_scan_forward", "fp8", marks=matrix),
    ],
)
def test_under_grad_of_the_emulated_loss(name, policy):
    function, (params, *rest) = make(name)

    def loss(params):
        return jnp.square(function(params, *rest)).mean()

    step = jax.value_and_grad(bits.emulated(loss, policy))
    value, gradients = bits.same_both_ways(step, params, what=name)
    errors = bits.relative_errors(
        (value, gradients), jax.jit(jax.value_and_grad(loss))(params)
    )
    assert max(errors.values()) < TOLERANCE[policy], errors


# ---- The same bits on other threads and by other means.

ELSEWHERE = [("gpt_forward", "bf16"), ("mlp_sgd", "bf16")]
ELSEWHERE_IN_FULL = [("gpt_scan", "bf16"), ("cnn_sgd_momentum", "bf16")]


def check_elsewhere(pairs: list[tuple[str, str]], *options: str) -> None:
    here = {f"{n}:{p}": bits.digest(verified(n, p, "trn2")) for n, p in pairs}
    assert bits.digests_elsewhere(pairs, *options) == here


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [("--threads", "1"), ("--no-kernels",)], ids=" ".join
)
def test_in_another_process(options):
    """On one thread; and without the kernels of the host."""
    check_elsewhere(ELSEWHERE, *options)


@matrix
@pytest.mark.parametrize(
    "options",
    [("--threads", "1"), ("--threads", "2"), ("--no-kernels",)],
    ids=" ".join,
)
def test_train_steps_in_another_process(options):
    check_elsewhere(ELSEWHERE_IN_FULL, *options)


# ---- An example alone and in a batch.


def check_alone(name: str, policy: str) -> None:
    function, args = make(name)
    argnums = PROGRAMS[name].batch_argnums
    step = bits.emulated(function, policy)
    together = verified(name, policy, "trn2")
    for i in range(args[argnums[0]].shape[0]):
        one = [a[i : i + 1] if n in argnums else a for n, a in enumerate(args)]
        row = jax.tree.map(lambda x, i=i: x[i : i + 1], together)
        bits.assert_same(step(*one), row, f"{name} {policy} example {i}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"), [("gpt_forward", "bf16"), ("cnn_forward", "fp32")]
)
def test_an_example_has_the_same_bits_alone_and_in_a_batch(name, policy):
    check_alone(name, policy)


@matrix
@pytest.mark.parametrize("policy", ["fp32", "bf16"])
@pytest.mark.parametrize("name", [n for n, p in PROGRAMS.items() if p.batch_argnums])
def test_examples_alone_in_full(name, policy):
    check_alone(name, policy)
