"""Differences between releases of NKI, read from `differences.json`.

A row of the file is a `ReleaseDifference` for several names; `{name}` in a remedy is
replaced by the last part of the name. The sources are in the repository aws-neuron-sdk:
"RN x" is the section of release x in release-notes/components/nki.rst, "API x" is the
API reference of its tag (nki/api), and "guide" is nki/migration/index.rst. Where the
notes do not list the names of a release, the references of two tags were compared.
"samples#134" is an issue of nki-samples.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from neuronjax.nki.releases.release import RELEASES, Release, place_in_time

#: "lost": the kernel fails, or gives zeros. "values": results may differ. "order":
#: positional arguments have another meaning, so code for one release is wrong for the
#: other. "note": no effect, or one that depends on data or the compiler.
Effect = Literal["lost", "values", "order", "note"]
Kind = Literal[
    "absent", "removed", "renamed", "default", "behaviour", "limit", "deprecated"
]


@dataclass(frozen=True, kw_only=True)
class When:
    """Conditions on the uses that a difference concerns; by default all uses."""

    #: Only uses that pass this keyword; "0" for those with a positional argument 0.
    keyword: str = ""
    literal: str = ""  # only uses whose `keyword` is a literal of this type: "int"
    without: str = ""  # only uses that do not pass this argument
    #: A call with at least this many positional arguments passes `without` by position.
    position: int = 0
    positional: int = 0  # only uses with at least this many positional arguments
    called: bool = False  # only calls
    style: str = ""  # only uses of this namespace: "neuronxcc.nki", "nki"
    valued: bool = False  # only uses whose result is used
    traced: str = ""  # only instructions for which this rule of `traced` holds


@dataclass(frozen=True, kw_only=True)
class ReleaseDifference:
    """A fact that holds in the releases from `since` on and before `until`."""

    name: str  # the subject: `nki.isa.topk`, `nki.isa.*`, a keyword of Python
    kind: Kind  # the sort of difference
    what: str  # the fact
    remedy: str  # what to write instead
    source: str  # the source documents, see docs/how-to/judge.md
    #: Canonical name of the first release in which it holds; "" for the oldest.
    since: str = ""
    until: str = ""  # the first release in which it no longer holds; "" for none
    effect: Effect = "lost"  # the effect on a kernel
    when: When = When()  # the uses concerned

    def holds_in(self, release: Release) -> bool:
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
