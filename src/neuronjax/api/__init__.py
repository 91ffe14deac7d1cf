"""The public verbs, one file each; what they do can be watched in a terminal."""

from neuronjax.execution import stages
from neuronjax.report.waiting import Waiting

stages.watched_by(Waiting.of)
