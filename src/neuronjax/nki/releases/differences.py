"""All differences between releases, read from `differences.json`.

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
from importlib import resources

from neuronjax.nki.releases.difference import ReleaseDifference, When


def _read() -> Iterator[ReleaseDifference]:
    path = resources.files("neuronjax.nki.releases") / "differences.json"
    for row in json.loads(path.read_text(encoding="utf-8")):
        names, when = row.pop("names"), When(**row.pop("when", {}))
        remedy = row.pop("remedy")
        for name in names:
            own = remedy.replace("{name}", name.rpartition(".")[2])
            yield ReleaseDifference(name=name, when=when, remedy=own, **row)


DIFFERENCES = tuple(_read())
