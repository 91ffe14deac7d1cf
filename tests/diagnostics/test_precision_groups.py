"""What a table of groups says of names that a reader would wonder about."""

from __future__ import annotations

from neuronjax.diagnostics.precision_groups import OpGroup, explained


def groups(*names):
    """The first one is all that no other group has."""
    selectors = [None, *({"module": name} for name in names[1:])]
    pairs = zip(names, selectors, strict=True)
    return [OpGroup(name=name, selectors=s, ops=1) for name, s in pairs]


def test_a_group_beside_those_inside_it():
    names = ("(others)", "attention", "attention/wq", "attention/wk", "mlp", "mlp_norm")
    found = [*explained(groups(*names), groups(*names))]
    assert found == [
        "(others): ops that are in none of the other groups",
        "attention: without the ops of the groups attention/wq and 1 more",
    ]


def test_plain_names_need_no_words():
    named = groups("(others)", "up", "down")[1:]
    assert [*explained(named, named)] == []
