"""The summary of a call, under the names that the vendor's older profiler prints.

`neuron-profile view --output-format summary-json` has no `adjusted_*` names: what the
instructions of the array add up to, those of `Profile.metrics`, is `hardware_flops` and
`transpose_flops` there, and `mm_arithmetic_intensity` is their difference over all
bytes of HBM (definitions: github.com/zhang677/AccelOpt, 47e29a7,
prompts/planner_prompts/base_prompt.txt).

Unexplained: counters that are published of FP32 kernels on trn1 (NKIBench's
rmsnorm_matmul, bmm, gqa_full, matmul_add_rmsnorm) have 2 x 2 M N K for products, and
here it is the four passes that the array needs, 4 x 2 M N K.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from types import MappingProxyType
from typing import Any

Figures = Mapping[str, float]


def _multiplied_per_byte(figures: Figures) -> float:
    moved = figures["hbm_read_bytes"] + figures["hbm_write_bytes"]
    executed = figures["adjusted_hardware_flops"] - figures["adjusted_transpose_flops"]
    return executed / moved if moved else 0.0


#: Older name -> what it is of `Profile.metrics`; all other names are alike.
OLDER_NAMES: Mapping[str, Callable[[Figures], float]] = MappingProxyType(
    {
        "hardware_flops": itemgetter("adjusted_hardware_flops"),
        "transpose_flops": itemgetter("adjusted_transpose_flops"),
        "mm_arithmetic_intensity": _multiplied_per_byte,
    }
)


def summary(figures: Figures) -> dict[str, Any]:
    """The summary of a profile; its field `predicted` says that nothing was measured.

    Args:
        figures: `Profile.metrics`: seconds, bytes, FLOP, and fractions from 0 to 1.
    """
    older = {name: value(figures) for name, value in OLDER_NAMES.items()}
    return {"predicted": True, **figures, **older}
