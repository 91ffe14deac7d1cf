"""A difference between releases of NKI: what is so from one release to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from neuronjax.nki.releases.release import RELEASES, Release, place_in_time

#: "lost": the kernel does not work so, or gives zeros. "values": results may be others.
#: "order": arguments by position mean others: what is right here is wrong there.
#: "note": nothing, or what the data or the compiler decides.
Effect = Literal["lost", "values", "order", "note"]
Kind = Literal[
    "absent", "removed", "renamed", "default", "behaviour", "limit", "deprecated"
]


@dataclass(frozen=True, kw_only=True)
class When:
    """Which uses of a name a difference is about; as it stands, all of them.

    Attributes:
        keyword: those that give this keyword, or the argument of this position from 0.
        literal: and that as a literal of this type: "int", "str".
        without: those that do not give this keyword,
        position: nor as many arguments by position as would hold it.
        positional: those with at least so many arguments by position.
        called: calls.
        style: those by the names of this namespace: "neuronxcc.nki", "nki".
        valued: those of whose result something is made.
        traced: instructions that this rule of `traced` holds for.
    """

    keyword: str = ""
    literal: str = ""
    without: str = ""
    position: int = 0
    positional: int = 0
    called: bool = False
    style: str = ""
    valued: bool = False
    traced: str = ""


@dataclass(frozen=True, kw_only=True)
class ReleaseDifference:
    """Something that is so in the releases from `since` on and before `until`.

    Attributes:
        name: what it is about: `nki.isa.topk`, `nki.isa.*`, a keyword of Python.
        kind: what sort of difference.
        since: canonical name of the first release in which it is so; "" for the oldest.
        until: of the first in which it is so no more; "" for none.
        what: what is so.
        remedy: what to write instead.
        source: the documents that say so, see docs/how-to/judge.md.
        effect: on a kernel that meets it.
        when: which uses.
    """

    name: str
    kind: Kind
    what: str
    remedy: str
    source: str
    since: str = ""
    until: str = ""
    effect: Effect = "lost"
    when: When = When()

    def holds_in(self, release: Release) -> bool:
        """Whether it is so in a release."""
        here = place_in_time(release.name)
        first = place_in_time(self.since) if self.since else 0
        end = place_in_time(self.until) if self.until else len(RELEASES)
        return first <= here < end
