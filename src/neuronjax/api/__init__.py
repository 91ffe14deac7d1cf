"""The public verbs, one file each, with a display of progress in a terminal."""

from neuronjax.execution import stages
from neuronjax.report.waiting import Waiting

stages.watched_by(Waiting.of)
