"""What a policy may change of a kernel's numbers: roundings, functions of ScalarE."""

from __future__ import annotations

from typing import NamedTuple

from neuronjax.errors import InvalidProgramError


class KernelNumerics(NamedTuple):
    """How the instructions of a kernel compute."""

    rounding: str = "rne"  # of writes: "rne" or "stochastic"
    #: Of ScalarE's functions: "exact" or "scalar_engine". The "host" of a program
    #: around a kernel is "exact" in it.
    transcendentals: str = "exact"

    def changed(self, **fields: str) -> KernelNumerics:
        """These with other fields.

        Raises:
            InvalidProgramError: an illegal value.
        """
        for name, value in fields.items():
            legal = _LEGAL[name]
            if value not in legal:
                raise InvalidProgramError(
                    f"{name}={value!r} of a kernel",
                    remedy=" or ".join(f'"{choice}"' for choice in legal),
                )
        return self._replace(**fields)

    def inside(self, around: KernelNumerics) -> KernelNumerics:
        """Those of a kernel in a program: the program's, where they are not usual."""
        pairs = zip(self, around, USUAL, strict=True)
        return KernelNumerics(*(own if a == usual else a for own, a, usual in pairs))


USUAL = KernelNumerics()

_LEGAL = {
    "rounding": ("rne", "stochastic"),
    "transcendentals": ("exact", "scalar_engine"),
}
FIELDS = tuple(_LEGAL)
