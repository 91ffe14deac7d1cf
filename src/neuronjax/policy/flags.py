"""The vendor's switches: compiler flags and environment variables, as policy fields.

`parse_flags` reads the flags that a user passes to the Neuron compiler, and
`parse_environment` the variables of the Neuron runtime; both return plain field values.
Every switch is an entry of a table and of one of three kinds: it sets fields; it cannot
change a number here (*inert*, accepted and recorded); or it would change numbers in a
way that is not emulated (an error). Nothing is ignored unless it is listed here.
Sources: the neuronx-cc command line reference of SDK 2.32, the JAX and runtime
environment variable references, the persistent cache guide.
"""

from __future__ import annotations

import dataclasses
import difflib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from neuronjax.errors import InvalidProgramError, UnsupportedError

Fields = Mapping[str, Any]

# --- compiler flags -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flag:
    """One compiler flag.

    Attributes:
        names: the spellings; the first one is used in messages.
        key: flags that override each other share a key; by default the first name.
        values: legal values; None for a switch without a value, () for any text.
        sets: value -> policy fields; a switch has the value "".
        unsupported: value -> why it is not emulated, "" for an emulated value; "*"
            stands for all other values.
    """

    names: tuple[str, ...]
    key: str = ""
    values: tuple[str, ...] | None = None
    sets: Mapping[str, Fields] = dataclasses.field(default_factory=dict)
    unsupported: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.names[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParsedFlags:
    """The content of a command line.

    Attributes:
        fields: values for the fields of `Policy`.
        target: the instance family of `--target`, or None. The target is not part of a
            policy; the caller compares it with the emulated chip.
        inert: (flag, value) pairs that were accepted and change no number here.
    """

    fields: Fields
    target: str | None
    inert: tuple[tuple[str, str], ...]


_UNDOCUMENTED = "its content is undocumented, so its effect on numbers is unknown"
_INFERENTIA1 = "it belongs to neuron-cc (Inf1); use --auto-cast"

# A flag without `sets` and `unsupported` is inert: it changes work, time or files, and
# the emulator's order of operations does not depend on it.
FLAGS: tuple[Flag, ...] = (
    Flag(
        names=("--auto-cast",),
        values=("none", "matmult", "all"),
        sets={v: {"auto_cast": v} for v in ("none", "matmult", "all")},
    ),
    Flag(
        names=("--auto-cast-type",),
        values=("bf16", "fp16", "tf32", "fp8_e4m3"),
        sets={
            **{v: {"auto_cast_type": v} for v in ("bf16", "fp16", "tf32")},
            # The compiler casts gradients to the same format.
            "fp8_e4m3": {"auto_cast_type": "fp8_e4m3", "cotangent_type": "same"},
        },
    ),
    Flag(
        names=("--logical-nc-config", "--lnc", "-lnc"),
        values=("1", "2"),
        sets={"1": {"lnc": 1}, "2": {"lnc": 2}},
    ),
    # Vector and scalar engines accumulate in FP32 here, as this flag asks.
    Flag(names=("--enable-mixed-precision-accumulation",), key="accumulation"),
    Flag(
        names=("--disable-mixed-precision-accumulation",),
        key="accumulation",
        unsupported={"": "neuronjax always accumulates reductions in FP32"},
    ),
    # This flag guards the compiler's transposes by matmul (Trn1 only); transposes here
    # move bits, so an infinity never meets a zero and there is nothing to saturate.
    Flag(names=("--enable-saturate-infinity",)),
    Flag(
        names=("--native-int64",),
        values=("default", "enabled", "disabled"),
        unsupported={"disabled": "neuronjax never cuts 64-bit integers to 32 bits"},
    ),
    Flag(
        names=("--implicit-integer-downcast",),
        values=(),
        sets={"none": {"implicit_integer_downcast": "none"}},
        unsupported={
            **dict.fromkeys(("default", "all", "none"), ""),
            "*": "neuronjax reads no list of ops; use all, none or Policy(rules=...)",
        },
    ),
    Flag(
        names=("--experimental-unsafe-fp8e4m3fn-as-fp8e4m3",),
        unsupported={"": "neuronjax reinterprets no FP8 format as another"},
    ),
    Flag(
        names=("--internal-backend-options",),
        values=(),
        sets={"--enable-mx-alternative-emax": {"mx_emax": "alternative"}},
        unsupported={"--enable-mx-alternative-emax": "", "*": _UNDOCUMENTED},
    ),
    Flag(names=("--tensorizer-options",), values=(), unsupported={"*": _UNDOCUMENTED}),
    Flag(names=("--fp32-cast",), values=(), unsupported={"*": _INFERENTIA1}),
    Flag(names=("--fast-math",), values=(), unsupported={"*": _INFERENTIA1}),
    # "trn3" is not on the reference page, but on other pages of the compiler.
    Flag(names=("--target",), values=("inf2", "trn1", "trn1n", "trn2", "trn3")),
    Flag(names=("--framework",), values=("XLA",)),
    Flag(names=("--model-type",), values=("generic", "transformer", "unet-inference")),
    Flag(names=("--optlevel", "-O"), values=("1", "2", "3")),
    Flag(names=("--distribution-strategy",), values=()),
    Flag(names=("--enable-fast-context-switch",)),
    Flag(names=("--enable-fast-loading-neuron-binaries",)),
    Flag(names=("--logfile",), values=()),
    Flag(names=("--output",), values=()),
    Flag(names=("--verbose",), values=()),
    Flag(names=("--cache_dir",), values=()),
    Flag(names=("--no_cache",)),
    Flag(names=("--retry_failed_compilation",)),
)

_BY_NAME: Mapping[str, Flag] = {name: flag for flag in FLAGS for name in flag.names}

INERT_FLAGS: frozenset[str] = frozenset(
    name for name, flag in _BY_NAME.items() if not flag.sets and not flag.unsupported
)
"""Flags that are accepted and change no number here."""


def parse_flags(flags: str | Sequence[str]) -> ParsedFlags:
    """Read a compiler command line; the last of competing flags applies.

    Args:
        flags: the text of `NEURON_CC_FLAGS`, or its words. Both `--flag=value` and
            `--flag value` are accepted, and `-O1`.

    Raises:
        InvalidProgramError: an unknown flag (the nearest known one is named), an
            illegal or missing value.
        UnsupportedError: a flag whose effect is not emulated.
    """
    chosen: dict[str, tuple[Flag, str]] = {}
    words = _words(flags)
    while words:
        flag, value = _take(words)
        key = flag.key or flag.name
        chosen.pop(key, None)  # keeps the order of the command line
        chosen[key] = (flag, value)
    fields: dict[str, Any] = {}
    inert: list[tuple[str, str]] = []
    for flag, value in chosen.values():
        reason = flag.unsupported.get(value, flag.unsupported.get("*", ""))
        if reason:
            shown = f"{flag.name}={value}" if value else flag.name
            raise UnsupportedError(
                f"compiler flag {shown} is not emulated",
                remedy=f"drop the flag for the emulation: {reason}",
            )
        fields.update(flag.sets.get(value, {}))
        if value not in flag.sets:
            inert.append((flag.name, value))
    target = chosen["--target"][1] if "--target" in chosen else None
    return ParsedFlags(fields=fields, target=target, inert=tuple(inert))


def _words(flags: str | Sequence[str]) -> list[str]:
    try:
        return shlex.split(flags) if isinstance(flags, str) else list(flags)
    except ValueError as error:
        raise InvalidProgramError(
            f"compiler flags {flags!r} cannot be split: {error}",
            remedy="close the quotation",
        ) from error


def _take(words: list[str]) -> tuple[Flag, str]:
    """Remove one flag and its value from the front of `words`."""
    word = words.pop(0)
    if word.startswith("-O") and word[2:].isdigit():
        word = f"-O={word[2:]}"
    name, equals, value = word.partition("=")
    flag = _find(name)
    if flag.values is None:
        if equals:
            raise InvalidProgramError(
                f"compiler flag {name} takes no value, got {value!r}",
                remedy=f"write {name}",
            )
        return flag, ""
    is_given = bool(equals or (words and not words[0].startswith("-")))
    if is_given and not equals:
        value = words.pop(0)
    if not is_given or (flag.values and value not in flag.values):
        problem = f"does not take {value!r}" if is_given else "needs a value"
        raise InvalidProgramError(
            f"compiler flag {name} {problem}",
            remedy=f"use one of: {', '.join(flag.values) or 'any text'}",
        )
    return flag, value


def _find(name: str) -> Flag:
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name.startswith("--internal-"):
        return Flag(names=(name,), values=(), unsupported={"*": _UNDOCUMENTED})
    near = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.0)[0]
    raise InvalidProgramError(
        f"unknown compiler flag {name!r}",
        remedy=f"the nearest known flag is {near}; see neuronjax.policy.flags.FLAGS",
    )


# --- environment variables ----------------------------------------------------------

IGNORED_VARIABLES: Mapping[str, str] = {
    "XLA_FLAGS": "it configures the host's XLA; emulated bits do not depend on it, and "
    "flags for fast math are refused",
    "NEURON_PLATFORM_TARGET_OVERRIDE": "the chip is the `target` argument",
    "NEURON_RT_NUMERICAL_ERRORS_VERBOSITY": "it reports NaN and changes no result",
    "NEURON_RT_ENABLE_OCP": "float8_e4m3fn is OCP's, whatever the variable's value",
    "NEURON_FAIL_ON_NAN": "it reports NaN and changes no result",
    "NKI_SIMULATOR": "it selects the vendor's simulator",
    "NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE": "both transposes move the same bits",
}
"""Variables related to numerics that are not read here, and why that is right."""

UNSUPPORTED_VARIABLES: Mapping[str, str] = {
    "NEURON_FUSE_SOFTMAX": "the fused softmax's rounding points are undocumented",
    "NEURON_RUN_TRIVIAL_COMPUTATION_ON_CPU": "programs would run on the host instead",
    "UNSAFE_FP8FNCAST": "neuronjax reinterprets no FP8 format as another",
    "XLA_HANDLE_SPECIAL_SCALAR": "neuronjax reinterprets no FP8 format as another",
    "XLA_USE_BF16": "the SDK removed it; cast in the program or use auto_cast",
    "XLA_DOWNCAST_BF16": "the SDK removed it; cast in the program or use auto_cast",
}
"""Variables that would change numbers when switched on, and are not emulated."""

_BOOLEANS = {"": False, "0": False, "false": False, "1": True, "true": True}


def parse_environment(environ: Mapping[str, str]) -> ParsedFlags:
    """Read NEURON_CC_FLAGS and the variables of rounding, saturation and logical cores.

    Raises:
        InvalidProgramError: a value out of range, or `NEURON_LOGICAL_NC_CONFIG` and
            `--lnc` disagree (the runtime then refuses to load the program).
        UnsupportedError: a variable of `UNSUPPORTED_VARIABLES` is switched on, or
            `NKI_PRECISE_FP` is off.
    """
    for name, reason in UNSUPPORTED_VARIABLES.items():
        if _boolean(environ, name):
            raise UnsupportedError(
                f"{name} is not emulated", remedy=f"unset it: {reason}"
            )
    if not _boolean(environ, "NKI_PRECISE_FP", default=True):
        raise UnsupportedError(
            "NKI_PRECISE_FP=0 is not emulated",
            remedy="unset it: neuronjax keeps low-precision values in their own format",
        )
    parsed = parse_flags(environ.get("NEURON_CC_FLAGS", ""))
    fields = dict(parsed.fields)
    if _boolean(environ, "NEURON_RT_STOCHASTIC_ROUNDING_EN"):
        fields["rounding"] = "stochastic"
    if _boolean(environ, "NEURON_RT_ENABLE_OCP_SATURATION"):
        fields["overflow"] = "saturate"
    if seed := environ.get("NEURON_RT_STOCHASTIC_ROUNDING_SEED"):
        fields["seed"] = _integer("NEURON_RT_STOCHASTIC_ROUNDING_SEED", seed)
    if text := environ.get("NEURON_LOGICAL_NC_CONFIG"):
        lnc = _integer("NEURON_LOGICAL_NC_CONFIG", text)
        if fields.setdefault("lnc", lnc) != lnc:
            raise InvalidProgramError(
                f"NEURON_LOGICAL_NC_CONFIG is {lnc} but --lnc is {fields['lnc']}",
                remedy="give compiler and runtime the same logical core size",
            )
    return dataclasses.replace(parsed, fields=fields)


def _boolean(environ: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Return a boolean variable, or the default if it is unset or empty. Like the
    runtime, accept 0, 1, false and true in upper and lower case."""
    text = environ.get(name, "").lower()
    if text not in _BOOLEANS:
        raise InvalidProgramError(
            f"environment variable {name} is {environ[name]!r}",
            remedy="use 0, 1, false or true",
        )
    return _BOOLEANS[text] if text else default


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InvalidProgramError(
            f"environment variable {name} is {text!r}", remedy="use an integer"
        ) from error
