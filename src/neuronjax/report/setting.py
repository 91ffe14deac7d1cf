"""The head line of every report: machine, logical core, numerics and SDK."""

from __future__ import annotations

import dataclasses

from neuronjax.hardware import Target
from neuronjax.policy import Policy
from neuronjax.policy.values import PRESETS

_SHOWN_FORMATS = {"fp8": "FP8", "mxfp8": "MXFP8", "mxfp4": "MXFP4"}
_CASTS = {"matmult": "matmuls in {}", "all": "all in {}"}
_FP32 = {
    "fp32_4pass_rows32": "FP32 in four passes",
    "fp32_4pass": "FP32 in four passes, sums of 128 rows",
}


def setting_line(target: Target, policy: Policy, lnc: int | None = None) -> str:
    """Return "trn2, LNC 2, policy fp32 (FP32 in four passes), SDK 2.32".

    None for `lnc` means the policy's LNC, or the target's if the policy has none."""
    cores = lnc or policy.lnc or target.lnc_default
    return f"{name_of(target)}, LNC {cores}, {numerics_of(policy)}"


def kernel_line(target: Target, lnc: int | None = None, nki: str = "") -> str:
    """Return "trn2, LNC 2, NKI kernel by NKI 0.5"; a kernel has no policy.

    None for `lnc` means the target's LNC; `nki` is the release whose rules apply."""
    rules = f" by NKI {nki}" if nki else ""
    return f"{name_of(target)}, LNC {lnc or target.lnc_default}, NKI kernel{rules}"


def name_of(target: Target) -> str:
    """Return the target's name, marked if its chip is a projection."""
    return target.name + " (a projection)" * target.chip.projected


def numerics_of(policy: Policy) -> str:
    """Return text such as "policy fp32 (FP32 in four passes), SDK 2.32"."""
    return f"policy {policy_name(policy)} ({policy_in_words(policy)}), SDK {policy.sdk}"


def policy_name(policy: Policy) -> str:
    """Return the name of a policy. Without one, return the name of a preset with equal
    settings (the SDK may differ), or "custom"."""
    if policy.name:
        return policy.name
    presets = {n: Policy.preset(n) for n in PRESETS}.items()
    same = (n for n, p in presets if dataclasses.replace(p, sdk=policy.sdk) == policy)
    return next(same, "custom")


def policy_in_words(policy: Policy) -> str:
    """Return the treatment of FP32 operands, the rounding and the rules in words."""
    words = _FP32[policy.fp32_model]
    if policy.auto_cast in _CASTS:
        kind = policy.auto_cast_type
        words = _CASTS[policy.auto_cast].format(_SHOWN_FORMATS.get(kind, kind.upper()))
    if policy.rounding != "rne":
        words += f", {policy.rounding} rounding"
    count = len(policy.rules)
    return words + (f", {count} rule{'s' * (count > 1)}" if count else "")
