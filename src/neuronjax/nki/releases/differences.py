"""All differences between releases."""

from neuronjax.nki.releases.rows_names import NAMES
from neuronjax.nki.releases.rows_rules import RULES

DIFFERENCES = (*NAMES, *RULES)
