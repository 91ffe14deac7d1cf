"""The releases of NKI, oldest first, and their names."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from neuronjax.errors import InvalidProgramError


@dataclass(frozen=True, kw_only=True)
class Release:
    """One release of NKI."""

    name: str  # the name for `--nki`
    sdk: str  # the first Neuron SDK with it
    date: str  # the date of that SDK
    #: The namespaces that kernels may import: "neuronxcc.nki", "nki".
    styles: tuple[str, ...]
    aliases: tuple[str, ...] = ()  # other names


OLDER, NEWER = "neuronxcc.nki", "nki"


def _beta(sdk: str, date: str, *aliases: str) -> Release:
    return Release(
        name=f"neuronxcc-{sdk}", sdk=sdk, date=date, styles=(OLDER,),
        aliases=(sdk, *aliases),
    )  # fmt: skip


def _numbered(name: str, sdk: str, date: str, *styles: str) -> Release:
    aliases = (f"{name}.0", sdk, f"{sdk}.0", f"nki-{name}")
    return Release(name=name, sdk=sdk, date=date, styles=styles, aliases=aliases)


#: From release-notes/components/nki.rst of aws-neuron-sdk. The betas have the name of
#: their SDK, and so has the release of SDK 2.27: it is 0.1.0 in its heading, but 0.2.0
#: in its text and in nki/migration/index.rst, which calls neuronxcc.nki 0.1.0. An SDK
#: for which the notes name no change (2.25) has the rules of the SDK before it.
RELEASES = (
    _beta("2.20", "2024-09-16", "neuronxcc-2.20.1"),
    _beta("2.21", "2024-12-16"),
    _beta("2.22", "2025-04-03"),
    _beta("2.23", "2025-05-20"),
    _beta("2.24", "2025-06-24", "2.25", "neuronxcc-2.25"),
    _beta("2.26", "2025-09-18", "neuronxcc", "neuronxcc-2.x", "2.26.1"),
    Release(
        name="2.27", sdk="2.27", date="2025-12-25", styles=(OLDER, NEWER),
        aliases=("2.27.0", "2.27.1"),
    ),
    _numbered("0.2", "2.28", "2026-02-26", OLDER, NEWER),
    _numbered("0.3", "2.29", "2026-04-09", OLDER, NEWER),
    _numbered("0.4", "2.30", "2026-05-21", NEWER),
    _numbered("0.5", "2.31", "2026-07-07", NEWER),
    _numbered("0.6", "2.32", "2026-08-17", NEWER),
)  # fmt: skip

#: The release whose rules the emulator follows by default.
NEWEST = RELEASES[-1]
#: The last release with only the older style, whose names did not change afterwards.
LAST_BETA = [r for r in RELEASES if NEWER not in r.styles][-1]

_NAMES = {
    **{alias: release for release in RELEASES for alias in release.aliases},
    **{release.name: release for release in RELEASES},
}
_PLACES = {release.name: n for n, release in enumerate(RELEASES)}


def resolve_release(name: str) -> Release:
    """Return the release with a name: "0.4", "0.4.0", "2.30", "neuronxcc-2.26",
    "neuronxcc"."""
    named = _NAMES.get(name)
    if named is None:
        near = difflib.get_close_matches(name, _NAMES, n=1)
        known = ", ".join(release.name for release in RELEASES)
        raise InvalidProgramError(
            f"no NKI release {name!r}",
            op="nki",
            remedy=f"did you mean {near[0]}? The releases are {known}"
            if near
            else f"one of {known}",
        )
    return named


def place_in_time(name: str) -> int:
    """Return how many releases are older than the one with this canonical name."""
    return _PLACES[name]
