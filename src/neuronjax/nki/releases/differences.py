"""What is so from one release of NKI to another, read from `differences.json`.

A row of the file is a `ReleaseDifference` that several names share; `{name}` in a
remedy stands for the last part of the name. The sources are in the repository
aws-neuron-sdk: "RN x" is the section of release x in release-notes/components/nki.rst,
"API x" is the API reference of its tag (nki/api), and "guide" is
nki/migration/index.rst. Where the notes do not list the names of a release, the
references of two tags were compared. "samples#134" is an issue of nki-samples.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
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
    """Which uses of a name a difference is about; as it stands, all of them."""

    #: Those that give this keyword, or the argument of this position from 0.
    keyword: str = ""
    literal: str = ""  # and that as a literal of this type: "int", "str"
    without: str = ""  # those that do not give this keyword,
    position: int = 0  # nor as many arguments by position as would hold it
    positional: int = 0  # those with at least so many arguments by position
    called: bool = False  # calls
    style: str = ""  # those by the names of this namespace: "neuronxcc.nki", "nki"
    valued: bool = False  # those of whose result something is made
    traced: str = ""  # instructions that this rule of `traced` holds for


@dataclass(frozen=True, kw_only=True)
class ReleaseDifference:
    """Something that is so in the releases from `since` on and before `until`."""

    name: str  # what it is about: `nki.isa.topk`, `nki.isa.*`, a keyword of Python
    kind: Kind  # what sort of difference
    what: str  # what is so
    remedy: str  # what to write instead
    source: str  # the documents that say so, see docs/how-to/judge.md
    #: Canonical name of the first release in which it is so; "" for the oldest.
    since: str = ""
    until: str = ""  # of the first in which it is so no more; "" for none
    effect: Effect = "lost"  # on a kernel that meets it
    when: When = When()  # which uses

    def holds_in(self, release: Release) -> bool:
        """Whether it is so in a release."""
        here = place_in_time(release.name)
        first = place_in_time(self.since) if self.since else 0
        end = place_in_time(self.until) if self.until else len(RELEASES)
        return first <= here < end


def _read() -> Iterator[ReleaseDifference]:
    path = resources.files("neuronjax.nki.releases") / "differences.json"
    for row in json.loads(path.read_text(encoding="utf-8")):
        names, when = row.pop("names"), When(**row.pop("when", {}))
        remedy = row.pop("remedy")
        for name in names:
            own = remedy.replace("{name}", name.rpartition(".")[2])
            yield ReleaseDifference(name=name, when=when, remedy=own, **row)


DIFFERENCES = tuple(_read())
