"""Places where a kernel depends on a difference between releases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from neuronjax.ir.kernel import KernelInstruction
from neuronjax.nki.releases.differences import DIFFERENCES, ReleaseDifference, When
from neuronjax.nki.releases.release import LAST_BETA, OLDER, Release, place_in_time
from neuronjax.nki.releases.traced import TRACED
from neuronjax.nki.releases.uses import NkiUse


@dataclass(frozen=True, kw_only=True)
class ReleaseMeeting:
    """A place in a kernel that depends on a difference between releases."""

    name: str  # the name in NKI that is concerned, spelled as in the kernel's style
    location: str  # "file:line"
    older: bool  # whether the kernel is of the older style (`neuronxcc.nki`)
    difference: ReleaseDifference  # the difference

    def holds_in(self, release: Release) -> bool:
        """Return whether the difference holds in a release for this kernel.

        After the last beta, `neuronxcc.nki` did not change until it was removed."""
        if self.older and self.name != OLDER and OLDER in release.styles:
            release = min(release, LAST_BETA, key=lambda r: place_in_time(r.name))
        return self.difference.holds_in(release)


def met_by_uses(uses: Iterable[NkiUse], path: str) -> Iterator[ReleaseMeeting]:
    """Yield every difference, of any release, that concerns a use in a file."""
    for use in uses:
        for difference in _about(use.name):
            if not difference.when.traced and _matches(difference.when, use):
                yield ReleaseMeeting(
                    name=_shown(use),
                    location=f"{path}:{use.line}",
                    older=use.older,
                    difference=difference,
                )


def met_by_instructions(
    instructions: Iterable[KernelInstruction], *, older: bool
) -> Iterator[ReleaseMeeting]:
    """Yield the differences that concern instructions, once for each line."""
    meetings: dict[tuple[str, ReleaseDifference], ReleaseMeeting] = {}
    for i in instructions:
        for difference in _about(f"nki.isa.{i.name}"):
            rule = difference.when.traced
            if rule and TRACED[rule](i):
                meetings[i.location, difference] = ReleaseMeeting(
                    name=difference.name,
                    location=i.location,
                    older=older,
                    difference=difference,
                )
    yield from meetings.values()


@cache
def _about(name: str) -> tuple[ReleaseDifference, ...]:
    names = (name, f"{name.rpartition('.')[0]}.*")
    return tuple(d for own in names for d in DIFFERENCES if d.name == own)


def _matches(when: When, use: NkiUse) -> bool:
    missing = when.without
    return not (
        (when.keyword and when.keyword not in use.keywords)
        or (when.literal and use.keywords[when.keyword] != when.literal)
        or (missing and (missing in use.keywords or use.is_open))
        or (missing and use.positional >= when.position)
        or use.positional < when.positional
        or (when.called and not use.call)
        or (when.style and (when.style == OLDER) != use.older)
        or (when.valued and not (use.call and use.valued))
    )


def _shown(use: NkiUse) -> str:
    if use.older and use.name.startswith("nki."):
        return f"{OLDER}{use.name.removeprefix('nki')}"
    return use.name
