"""Policies: what the compiler may change about numbers, with its flags and scopes."""

from neuronjax.policy.policy import Policy as Policy, Rule as Rule
from neuronjax.policy.values import Preset as Preset
