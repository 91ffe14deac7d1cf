"""The public functions (verbs), one file each. Slow ones show their progress."""

from neuronjax.execution import stages
from neuronjax.report.waiting import Waiting

stages.watched_by(Waiting.of)
