"""The summary of a call, under the names of the vendor's older profiler.

`neuron-profile view --output-format summary-json` has no `adjusted_*` names. Its
`hardware_flops` and `transpose_flops` are sums over the instructions of the array, as
in `Profile.metrics`, and its `mm_arithmetic_intensity` is their difference divided by
all bytes of HBM (definitions: github.com/zhang677/AccelOpt, 47e29a7,
prompts/planner_prompts/base_prompt.txt).

Unexplained: published counters of FP32 kernels on trn1 (NKIBench's rmsnorm_matmul, bmm,
gqa_full, matmul_add_rmsnorm) count 2 x 2 M N K for products; here they count 4 x 2 M N
K, because the array needs four passes.
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


#: Older name -> its value from `Profile.metrics`; all other names are the same.
OLDER_NAMES: Mapping[str, Callable[[Figures], float]] = MappingProxyType(
    {
        "hardware_flops": itemgetter("adjusted_hardware_flops"),
        "transpose_flops": itemgetter("adjusted_transpose_flops"),
        "mm_arithmetic_intensity": _multiplied_per_byte,
    }
)


def summary(figures: Figures) -> dict[str, Any]:
    """Return the summary of a profile; its `predicted` says that nothing was measured.

    Args:
        figures: `Profile.metrics`: seconds, bytes, FLOP, and fractions from 0 to 1.
    """
    older = {name: value(figures) for name, value in OLDER_NAMES.items()}
    return {"predicted": True, **figures, **older}
