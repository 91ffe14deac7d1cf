"""What the compiler may change about numbers: policies, their flags and scopes."""

from neuronjax.policy.policy import Policy as Policy, Rule as Rule
from neuronjax.policy.values import Preset as Preset
