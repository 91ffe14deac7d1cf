"""Policy and Rule: what the compiler and the chip may do to a program's numbers.

A `Policy` is a frozen, hashable value: which operands are cast and to what, how casts
round, scale and overflow, and in which order sums are taken. Lowering reads one
effective policy per op. A `Rule` overrides it for the ops that its patterns select. The
legal values of fields are in `policy.values`, the vendor's switches in `policy.flags`,
policies for the ops of a `with` block in `policy.scopes`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from neuronjax.errors import InvalidProgramError
from neuronjax.policy import values
from neuronjax.policy.flags import parse_environment, parse_flags
from neuronjax.policy.values import NEWEST_SDK

_STACKED_LAYERS = (
    "correct the pattern. Layers stacked in one jax.lax.scan are one op with one"
    " parameter path and cannot be told apart: select them all, or unroll the scan"
)
_SDK = "sdk"  # the default of a field that follows `Policy.sdk`
_MX_COTANGENTS = {"float8_e5m2": "mxfp8_e5m2"}
_SELECTORS = ("op", "param", "scope", "source", "module")


_T = TypeVar("_T")


def _by_name(cls: type[_T]) -> type[_T]:
    """Return the class, changed to explain an error about positional arguments."""
    fill = cls.__init__

    @functools.wraps(fill)
    def filled(self: _T, *given: object, **fields: Any) -> None:
        if given:
            preset = f"a preset is nj.Policy.preset({given[0]!r})"
            what = f"{cls.__name__}({given[0]!r})"
            raise TypeError(f"{what}: give fields by name; {preset}")
        fill(self, **fields)

    cls.__init__ = filled
    return cls


class _Partners(NamedTuple):
    what: str
    also: tuple[str, ...] = ()


_PARTNERS = {
    "tf32": _Partners("TF32 operands only with TF32 and FP32 operands"),
    "mxfp8": _Partners("MX operands only with MX operands", ("float8_e5m2",)),
    "mxfp4": _Partners("MX operands only with MX operands", ("float8_e5m2",)),
}


@_by_name
@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Rule:
    """Overrides of a policy for some ops.

    Selectors are regular expressions, found anywhere in the text (`re.search`); all
    given selectors must match. An override of None leaves the policy's value.

    Attributes:
        op: the op's name, "stablehlo.dot_general".
        param: the pytree path of a program argument, joined by "/", from which one of
            the op's operands descends: "params/head/kernel".
        scope: the op's name stack, "jit(step)/transpose(jvp(head))/dot_general".
        source: the user's source line, "model.py:42".
        module: the part of the model, as all reports name it: "blocks/0/attn".

    The other fields are those of `Policy`.

    Raises:
        InvalidProgramError: no selector, no override, an invalid regular expression, or
            an illegal value.
    """

    op: str | None = None
    param: str | None = None
    scope: str | None = None
    source: str | None = None
    module: str | None = None
    auto_cast: str | None = None
    auto_cast_type: str | None = None
    dot_precision: str | None = None
    cotangent_type: str | None = None
    rounding: str | None = None
    scaling: str | None = None
    amax_history_length: int | None = None
    accumulation: str | None = None
    fp32_model: str | None = None
    psum_dtype: str | None = None
    transcendentals: str | None = None
    integer_path: str | None = None
    integer_division: str | None = None
    implicit_integer_downcast: str | None = None
    float_to_int: str | None = None
    round_trips: str | None = None
    overflow: str | None = None
    mx_scale_rule: str | None = None
    mx_weight_scale_rule: str | None = None
    mx_emax: str | None = None
    mx_layout: str | None = None
    sparsity: str | None = None
    host_custom_calls: bool | None = None
    callbacks: str | None = None
    collective_algorithm: str | None = None
    collective_reduce_dtype: str | None = None

    def __post_init__(self) -> None:
        if not self.selectors:
            raise InvalidProgramError(
                f"{self!r} selects nothing",
                remedy=f"give at least one of: {', '.join(_SELECTORS)}",
            )
        if not self.overrides:
            raise InvalidProgramError(
                f"{self!r} overrides nothing",
                remedy='give a field to override, such as auto_cast="none"',
            )
        for name, pattern in self.selectors.items():
            values.check_pattern(f"Rule.{name}", pattern)
        for name, value in self.overrides.items():
            _checked("Rule", name, value)

    @property
    def selectors(self) -> Mapping[str, str]:
        """The patterns that are given, by selector."""
        return {s: p for s in _SELECTORS if (p := getattr(self, s)) is not None}

    @property
    def overrides(self) -> Mapping[str, Any]:
        """The values that are given, by field of `Policy`."""
        names = (f.name for f in dataclasses.fields(self) if f.name not in _SELECTORS)
        return {name: v for name in names if (v := getattr(self, name)) is not None}

    def matches(
        self,
        op_name: str,
        *,
        params: tuple[str, ...],
        scope: str,
        source: str,
        module: str,
    ) -> bool:
        """Return whether the pattern of each selector is found in the argument of its
        name; for `param`, in any of `params`."""
        own = dict(op=op_name, scope=scope, source=source, module=module)
        return all(
            any(re.search(pattern, t) for t in (params if n == "param" else (own[n],)))
            for n, pattern in self.selectors.items()
        )

    def __repr__(self) -> str:
        given = {**self.selectors, **self.overrides}.items()
        return f"Rule({', '.join(f'{name}={value!r}' for name, value in given)})"


@_by_name
@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Policy:
    """The numerics of a program: what compiler and chip may do to its numbers.

    A policy is hashable; change a copy of it with `dataclasses.replace`.

    Attributes:
        auto_cast: which FP32 operands are cast down: "none", those of matmuls and
            convolutions ("matmult"), or those of "all" ops. A dot with an explicit
            algorithm (`lax.DotAlgorithm`) is not cast and rounds as the algorithm says.
        dot_precision: whether a dot or convolution with `precision=HIGH` or `HIGHEST`
            keeps its operands uncast ("obeyed") or has them cast like any other
            ("ignored"). "auto" ignores it, with one warning per source line, because
            the vendor documents flags that cast all ops, but no cast of a single op.
        auto_cast_type: the format of these casts; "fp8" is the chip's own forward
            format. The MX types take operands of every float dtype; "mxfp4" is MXFP4
            for weights, prepared offline, and MXFP8, to which the device can quantize,
            for all else.
        cotangent_type: the format to which operands of the backward pass that carry
            gradients are cast: "auto" is e5m2 for the FP8 types and otherwise "same"
            (MXFP8 keeps e4m3: a block's scale gives the range, so mantissa bits are
            worth more).
        rounding: how every write to a format narrower than FP32 rounds, to nearest even
            or stochastically: results of ops, casts, partial sums in PSUM and over
            devices.
        seed: the seed of stochastic rounding, an unsigned 32-bit integer.
        scaling: the scale of an FP8 cast, a power of two per tensor: none ("none"),
            from the tensor's own maximum ("current"), or from its maxima in the last
            `amax_history_length` steps ("delayed"; 1024 is an ASSUMPTION, the value of
            other FP8 libraries).
        loss_scale: a factor on the loss, divided out of the gradients; None for no
            factor. The emulated function must be the loss and be differentiated from
            outside, `jax.grad(neuronjax.jit(loss, ...))`; if the gradient is taken
            inside the function, there is no loss to scale.
        accumulation: the order of sums; "systolic" is the modelled order; "sequential"
            differs from it in that sums and products of VectorE are one left fold of
            any length instead of tiles of 512 (no measurement says which is right);
            "host" leaves the sums of TensorE to XLA, without any promise.
        fp32_model: how TensorE multiplies FP32 operands, in four passes of high and low
            halves: in "fp32_4pass_rows32" a pass sums every 32 rows and adds these sums
            in order, which fits trn2's published errors (docs/exactness.md); in
            "fp32_4pass" a pass is one sum down the 128 rows.
        psum_dtype: the format in which PSUM adds the tiles of a matmul, "float32" or,
            if the chip can, "bfloat16".
        transcendentals: how elementary functions are computed. "exact" uses neuronjax's
            own functions, "scalar_engine" piecewise cubics with ScalarE's error as far
            as that is known, both with the same bits on every host; "host" uses XLA's.
        integer_path: how integers are added, multiplied and compared. "exact" is
            StableHLO's arithmetic, "fp32" what engines other than GpSimd do, and "auto"
            what the chip does: GpSimd is exact; reductions over devices, and chips
            without GpSimd, compute 32- and 64-bit integers in FP32, which is exact only
            to 2**24, with one warning per source line.
        integer_division: how integers are divided by a constant. "exact" is the
            quotient, "reciprocal" the FP32 product with the FP32 reciprocal, rounded
            towards zero, as in public runs: 6284 // 6284 is 0.
        implicit_integer_downcast: with "none" a reduction of 32- or 64-bit integers
            over devices, which the chip can only do in FP32, is an error, as in the
            compiler (EVRF061, EVRF063).
        float_to_int: how floats become integers: "truncate" as in StableHLO, "rne" as
            in engines.
        round_trips: whether a float that is cast to a narrower dtype and immediately
            back is rounded: "kept" runs both casts, "folded" neither, as the compiler
            does inside a graph.
        overflow: the result of an overflow on a write that `rounding` rounds: Inf (NaN
            for e4m3fn) with "ieee", the largest finite value with "saturate", which
            also replaces an Inf. Operations that only move or select keep the bits.
        mx_scale_rule: how the device chooses the shared scale of an MX block.
        mx_weight_scale_rule: how a checkpoint's MXFP4 weights were quantized.
        mx_emax: the largest exponent of FP8 elements by which the device computes MX
            scales: "standard", 8 (E4M3) and 15 (E5M2), or "alternative", 7 and 14, a
            mode of the compiler (`--enable-mx-alternative-emax`).
        mx_layout: which elements along K form an MX block: "consecutive" ones, or
            "interleaved", 128 apart, as in the vendor's guide.
        sparsity: the N:M pattern to which the weights of forward contractions are
            pruned and compressed, or None for dense.
        host_custom_calls: whether linear algebra that no NeuronCore has (svd, qr, eigh,
            ...) runs on the host, as JAX computes it, without any promise; otherwise it
            is an error.
        callbacks: what becomes of `pure_callback` and `io_callback`, which no
            NeuronCore has: an "error", a run on the "host", or "drop": they are left
            out, and each result is NaN, the largest integer or True.
            `jax.debug` always runs.
        collective_algorithm: the algorithm of reductions over devices: "auto" chooses
            by size and group, as documented. The algorithm fixes the order of additions
            and how often partial sums are rounded. The names are those of
            `collectives.algorithms`: "mesh", "ring:4" with four channels, "mesh+rdh"
            for "mesh" within nodes and "rdh" between them. A `Rule`, or a block of
            `neuronjax.collective_algorithm`, overrides it.
        collective_reduce_dtype: the dtype in which reductions over devices send float
            operands and partial sums, rounded to the tensor's dtype at the end; None
            for the tensor's dtype.
        lnc: physical cores per logical NeuronCore; None for the chip's default.
        placement: the logical core of every device of a mesh, counted over the chips of
            the target; () for the device's own number. The placement decides which
            ranks share a chip, and so the order of additions and the time.
        sdk: the Neuron SDK whose defaults fill the fields that are not given. A filled
            field stays as it is under `dataclasses.replace(..., sdk=...)`; start from
            `Policy.for_sdk`.
        rules: overrides for single ops; the last one that matches an op applies to it.
        name: a label for reports; not part of the value.

    Raises:
        InvalidProgramError: an illegal value; the message names the legal ones.
    """

    auto_cast: str = _SDK
    auto_cast_type: str = "bf16"
    dot_precision: str = "auto"
    cotangent_type: str = "auto"
    rounding: str = "rne"
    seed: int = 0
    scaling: str = "none"
    amax_history_length: int = 1024
    loss_scale: float | None = None
    accumulation: str = "systolic"
    fp32_model: str = "fp32_4pass_rows32"
    psum_dtype: str = "float32"
    transcendentals: str = "exact"
    integer_path: str = "auto"
    integer_division: str = "exact"
    implicit_integer_downcast: str = "all"
    float_to_int: str = "truncate"
    round_trips: str = "kept"
    overflow: str = "ieee"
    mx_scale_rule: str = _SDK
    mx_weight_scale_rule: str = "ocp_floor"
    mx_emax: str = "standard"
    mx_layout: str = "consecutive"
    sparsity: str | None = None
    host_custom_calls: bool = False
    callbacks: str = "error"
    collective_algorithm: str = "auto"
    collective_reduce_dtype: str | None = None
    lnc: int | None = None
    placement: tuple[int, ...] = ()
    sdk: str = NEWEST_SDK
    rules: tuple[Rule, ...] = ()
    name: str | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sdk", values.normal_sdk(self.sdk))
        for name, value in values.sdk_defaults(self.sdk).items():
            if getattr(self, name) == _SDK:
                object.__setattr__(self, name, value)
        for field in dataclasses.fields(self):
            value = _checked("Policy", field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        partners = _PARTNERS.get(self.auto_cast_type)
        if partners and self.cotangent_type not in ("auto", "same", *partners.also):
            raise InvalidProgramError(
                f"Policy.cotangent_type is {self.cotangent_type!r}, but the tensor"
                f" engine pairs {partners.what}",
                remedy="use cotangent_type='same'",
            )
        if (self.mx_scale_rule, self.mx_emax) == ("nki_golden", "alternative"):
            raise InvalidProgramError(
                "Policy.mx_emax is 'alternative' with mx_scale_rule='nki_golden', a"
                " rule that has no such mode",
                remedy="use mx_emax='standard', or another rule",
            )
        if self.auto_cast == "all" and self.auto_cast_type.startswith("mx"):
            raise InvalidProgramError(
                f"Policy.auto_cast is 'all' with {self.auto_cast_type!r}: microscaling"
                " is for the operands of matmuls, in blocks along the contraction",
                remedy="use auto_cast='matmult'",
            )

    def named(self) -> str:
        """Return the policy's name, which distinguishes it in reports."""
        if not self.name:
            raise InvalidProgramError(
                f"a policy without a name: {self!r}",
                remedy='name it with dataclasses.replace(policy, name="...")',
            )
        return self.name

    @property
    def given(self) -> Mapping[str, Any]:
        """The name, and the fields that differ from the SDK's defaults, by name."""
        usual = dataclasses.replace(Policy(sdk=self.sdk), sdk=NEWEST_SDK)
        names = ("name", *(f.name for f in dataclasses.fields(self)))
        return {n: v for n in names if (v := getattr(self, n)) != getattr(usual, n)}

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name, value in self.given.items())
        return f"Policy({', '.join(given)})"

    @classmethod
    def preset(cls, name: str) -> Policy:
        """Return a preset such as "bf16", possibly with changes: "bf16,callbacks=host".

        Without a preset, "callbacks=host" gives the default policy with this change.
        """
        preset, changes = values.words_of(name)
        if preset is not None and preset not in values.PRESETS:
            raise values.illegal("policy preset", preset, tuple(values.PRESETS))
        fields = {f.name for f in dataclasses.fields(cls)} - {"name", "rules"}
        for unknown in sorted(changes.keys() - fields):
            raise values.illegal("policy field", unknown, tuple(sorted(fields)))
        return cls(name=name, **{**values.PRESETS.get(preset or "", {}), **changes})

    @classmethod
    def resolve(cls, policy: str | Policy | None) -> Policy:
        """Return the preset of a name, a policy unchanged, or the defaults for None."""
        if policy is None:
            return cls()
        if isinstance(policy, str):
            return cls.preset(policy)
        if isinstance(policy, Policy):
            return policy
        raise InvalidProgramError(
            f"policy is {policy!r}, of type {type(policy).__name__}",
            remedy=f"give a Policy, None, or one of: {', '.join(values.PRESETS)}",
        )

    @classmethod
    def for_sdk(cls, version: str) -> Policy:
        """Return the defaults of a Neuron SDK such as "2.26"."""
        return cls(sdk=version)

    @classmethod
    def from_flags(cls, flags: str | Sequence[str], *, sdk: str = NEWEST_SDK) -> Policy:
        """Return the policy of a compiler's flags; see `policy.flags.parse_flags`."""
        return cls(sdk=sdk, **parse_flags(flags).fields)

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] = os.environ, *, sdk: str = NEWEST_SDK
    ) -> Policy:
        """Return the policy of NEURON_* variables; see `flags.parse_environment`."""
        return cls(sdk=sdk, **parse_environment(environ).fields)

    def operand_dtype(
        self, role: Literal["forward", "weight", "cotangent"], *, chip_fp8: str | None
    ) -> str:
        """Return the format that `auto_cast` gives to an operand of that role.

        Args:
            role: "cotangent" for an operand that carries a gradient, "weight" for one
                that comes from a checkpoint.
            chip_fp8: what "fp8" means on the chip, "float8_e4m3" or "float8_e4m3fn";
                None for a chip that has neither and refuses both.
        """
        name, cotangent = self.auto_cast_type, self.cotangent_type
        if role == "weight" and name in values.WEIGHT_FORMATS:
            return values.WEIGHT_FORMATS[name]
        fp8 = chip_fp8 or values.CAST_DTYPES["fp8_e4m3"]
        forward = fp8 if name == "fp8" else values.CAST_DTYPES[name]
        if cotangent == "auto":
            cotangent = "float8_e5m2" if name.startswith("fp8") else "same"
        if role != "cotangent" or cotangent == "same":
            return forward
        return _MX_COTANGENTS[cotangent] if name.startswith("mx") else cotangent

    def matching_rules(
        self,
        op_name: str,
        *,
        params: tuple[str, ...] = (),
        scope: str = "",
        source: str = "",
        module: str = "",
    ) -> tuple[int, ...]:
        """Return the indices of the rules that match an op.

        A rule that matches no op of a program is an error, see `unmatched_rule_error`.

        Args:
            op_name: "stablehlo.dot_general".
            params: paths of the arguments from which the operands descend.
            scope: the name stack, preceded by those of the enclosing calls.
            source: "file:line".
            module: the part of the model.
        """
        texts: Any = dict(params=params, scope=scope, source=source, module=module)
        rules = enumerate(self.rules)
        return tuple(n for n, rule in rules if rule.matches(op_name, **texts))

    def for_op(self, op_name: str, **texts: Any) -> Policy:
        """Return this policy without rules, but with the overrides of the last rule
        that matches an op, which is described by the arguments of `matching_rules`."""
        if not self.rules:
            return self
        matched = self.matching_rules(op_name, **texts)
        return _under_rule(self, matched[-1] if matched else None)

    def can_change(self, index: int, op_name: str) -> bool:
        """Return whether a rule may change an op of this name that it matches.

        A rule about casts only changes ops whose operands are cast: matmuls and
        convolutions, or every op if `auto_cast` is "all".
        """
        under, overrides = _under_rule(self, index), self.rules[index].overrides
        if not _ABOUT_CASTS.issuperset(overrides) or under.auto_cast == "all":
            return True
        if op_name in _CAST_ALONE:
            return under.auto_cast != "none" or "auto_cast" in overrides
        return self.auto_cast == "all"

    def describe(self) -> str:
        """Return a few lines of text about casts, rounding and the order of sums."""
        return "\n".join(_description(self))


@functools.lru_cache(maxsize=1024)
def _under_rule(policy: Policy, index: int | None) -> Policy:
    overrides = {} if index is None else policy.rules[index].overrides
    return dataclasses.replace(policy, rules=(), **overrides)


_ABOUT_CASTS = frozenset({"auto_cast", "auto_cast_type", "cotangent_type", "scaling"})
_CAST_ALONE = {
    f"stablehlo.{name}" for name in ("dot_general", "convolution", "custom_call")
}


def idle_rule_error(rule: Rule) -> InvalidProgramError:
    """Return the error for a rule that matches ops but can change none of them."""
    casts = ", ".join(rule.overrides)
    return InvalidProgramError(
        f"{rule!r} can change nothing about the ops that it matches: {casts} affects "
        "only casts, and the operands of these ops are not cast",
        remedy='let the rule match matmuls or convolutions, with auto_cast="matmult" '
        'if the policy casts nothing; or give the rule auto_cast="all"',
    )


def unmatched_rule_error(
    rule: Rule, candidates: Mapping[str, Collection[str]]
) -> InvalidProgramError:
    """Return the error for a rule that matched no op of a program.

    Args:
        rule: the rule.
        candidates: selector ("op", "param", ...) -> the texts of the program in which
            its pattern was searched.
    """
    lines = [f"{rule!r} matches no op of the program"]
    for name, pattern in rule.selectors.items():
        texts = sorted(set(candidates.get(name, ())))
        if any(re.search(pattern, text) for text in texts):
            continue
        plain = re.sub(r"[\\^$.*+?()\[\]{}|]", "", pattern)
        nearest = difflib.get_close_matches(plain, texts, n=3, cutoff=0.0)
        near = ", ".join(map(repr, nearest)) or "none exist"
        lines.append(
            f"  {name}={pattern!r} matches none of {len(texts)} {name}s; near: {near}"
        )
    if len(lines) == 1:
        lines.append("  every selector matches some op, but no op matches all of them")
    return InvalidProgramError("\n".join(lines), remedy=_STACKED_LAYERS)


def _checked(owner: str, name: str, value: object) -> object:
    """Return the value, as a plain Python number if it is one."""
    if name in values.LEGAL:
        return values.check_word(f"{owner}.{name}", value, values.LEGAL[name])
    if name == "rules":
        rules: tuple[Any, ...] = (value,)
        if isinstance(value, (tuple, list)):
            rules = tuple(value)
        for rule in rules:
            if not isinstance(rule, Rule):
                raise InvalidProgramError(
                    f"Policy.rules holds {rule!r}", remedy="give a tuple of nj.Rule"
                )
        return rules
    check = values.CHECKS.get(name)
    return value if check is None else check(f"{owner}.{name}", value)


_CASTS = {
    "none": "none; every op computes in its declared dtype",
    "matmult": "FP32 operands of matmuls to {forward}, gradients to {cotangent}",
    "all": "FP32 operands of all ops to {forward}, gradients to {cotangent}",
}
_ACCUMULATIONS = {
    "systolic": "float32 within a tile, {psum_dtype} across tiles (systolic)",
    "sequential": "matmuls as in systolic; VectorE adds any sum from left to right",
    "host": "left to the host's XLA, with no promise of an order",
}
_ALWAYS_DESCRIBED = ("auto_cast", "auto_cast_type", "cotangent_type", "rounding")


def _description(policy: Policy) -> Iterator[str]:
    fields = {f.name: getattr(policy, f.name) for f in dataclasses.fields(policy)}
    rules, name = fields.pop("rules"), fields.pop("name")
    chip_fp8 = "the chip's FP8"
    forward = policy.operand_dtype("forward", chip_fp8=chip_fp8)
    cotangent = policy.operand_dtype("cotangent", chip_fp8=chip_fp8)
    casts = _CASTS[policy.auto_cast].format(forward=forward, cotangent=cotangent)
    yield f"policy {name or '(unnamed)'}, SDK {policy.sdk}"
    yield f"  casts: {casts}"
    yield f"  rounding: {policy.rounding}"
    yield f"  accumulation: {_ACCUMULATIONS[policy.accumulation].format(**fields)}"
    defaults = Policy.for_sdk(policy.sdk)
    for field, value in fields.items():
        if field not in _ALWAYS_DESCRIBED and value != getattr(defaults, field):
            yield f"  {field}: {value}"
    yield from (f"  rule {index}: {rule!r}" for index, rule in enumerate(rules))
