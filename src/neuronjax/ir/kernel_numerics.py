"""The numerics of a kernel that a policy may change: rounding and ScalarE's
functions."""

from __future__ import annotations

from typing import NamedTuple

from neuronjax.errors import InvalidProgramError


class KernelNumerics(NamedTuple):
    """The roundings and functions of ScalarE that the instructions of a kernel use."""

    rounding: str = "rne"  # how writes round: "rne" or "stochastic"
    #: How ScalarE's functions are computed: "exact" or "scalar_engine". A surrounding
    #: program's "host" is "exact" in a kernel.
    transcendentals: str = "exact"

    def changed(self, **fields: str) -> KernelNumerics:
        """Return these numerics with other fields; refuse an illegal value."""
        for name, value in fields.items():
            legal = _LEGAL[name]
            if value not in legal:
                raise InvalidProgramError(
                    f"a kernel cannot have {name}={value!r}",
                    remedy="use " + " or ".join(f'"{choice}"' for choice in legal),
                )
        return self._replace(**fields)

    def inside(self, around: KernelNumerics) -> KernelNumerics:
        """Return these numerics, with the non-default fields of `around` in place."""
        pairs = zip(self, around, USUAL, strict=True)
        return KernelNumerics(*(own if a == usual else a for own, a, usual in pairs))


USUAL = KernelNumerics()

_LEGAL = {
    "rounding": ("rne", "stochastic"),
    "transcendentals": ("exact", "scalar_engine"),
}
FIELDS = tuple(_LEGAL)
