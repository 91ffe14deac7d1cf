"""Options that commands take from the verbs."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from neuronjax import cli
from neuronjax.api.profile import profile
from neuronjax.cli.application import COMMANDS
from neuronjax.cli.options import Offer, help_of, in_options, options_of
from neuronjax.errors import UnsupportedError


def verb(x, *, share: float = 0.5, rounds: int, kinds: str | None = None):
    """Does it.

    Args:
        x: what to do it to.
        share: of the whole; None for
            all. In Python only this.
        rounds: how many.
        kinds: as `neuronjax.profile`; not looked up here.

    Returns:
        Nothing.
    """


def test_help_is_the_first_sentence():
    assert help_of(verb, "share") == "Share of the whole; default: all."
    assert help_of(verb, "rounds") == "How many."


def test_help_is_looked_up_in_another_verb():
    def other():
        """Does it.

        Args:
            lnc: as `neuronjax.profile`.
        """

    assert help_of(other, "lnc") == help_of(profile, "lnc")


def test_values_are_read_and_the_verbs_defaults_hold():
    found = []
    app = typer.Typer()

    @app.command()
    @options_of(verb, "share", "rounds", kinds=Offer(help="K.", read=str.upper))
    def command(x: str, *, as_json: bool = False, **keywords: object) -> None:
        found.append((x, as_json, keywords))

    assert CliRunner().invoke(app, ["a", "--rounds", "3"]).exit_code == 0
    assert found.pop() == ("a", False, {"share": 0.5, "rounds": 3})
    CliRunner().invoke(app, ["a", "--rounds", "3", "--kinds", "k", "--as-json"])
    assert found.pop() == ("a", True, {"share": 0.5, "rounds": 3, "kinds": "K"})
    assert CliRunner().invoke(app, ["a"]).exit_code == 2  # rounds has no default


FLAGS = {"price_per_hour": "--price", "steps": "--steps", "trips": "--trips"}


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("give price_per_hour={'trn1': 2.5}; else", "give --price trn1=2.5; else"),
        ("one price_per_hour, 3", "one --price, 3"),
        ("give trips={'a.py:3': 7}", "give --trips a.py:3=7"),
        ("give steps=100 for 5 steps", "give --steps 100 for 5 steps"),
        ("my_price_per_hour", "my_price_per_hour"),
    ],
)
def test_messages_name_options(message, wanted):
    assert in_options(message, FLAGS) == wanted


def test_an_error_keeps_its_kind_and_its_place():
    @options_of(verb, "share", "rounds")
    def command(**keywords) -> None:
        raise UnsupportedError(
            "rounds=3", op="op", location="a.py:1", remedy="no share"
        )

    with pytest.raises(UnsupportedError) as raised:
        command(share=None, rounds=3)
    error = raised.value
    assert (error.what, error.remedy) == ("--rounds 3", "no share")
    assert (error.op, error.location) == ("op", "a.py:1")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_says_what_it_is(command):
    offered = typer.main.get_command(cli.app).get_command(None, command)
    for option in offered.params:
        assert getattr(option, "help", None) or option.name == "tiny", option.name


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_80_columns_is_whole(command):
    text = (
        CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "80"}).output
    )
    assert "…" not in text  # a word that a column has no room for
    module = importlib.import_module(COMMANDS[command])
    function = getattr(module, command.replace("-", "_"))
    lines = [line.strip() for line in text.splitlines()]
    examples = re.findall(r"^ {4,}(neuronjax .*)", inspect.getdoc(function), re.M)
    assert examples
    for line in examples:  # none is broken, or on a line with another
        assert line in lines


def test_a_command_imports_no_other():
    """Files of chips need no JAX."""
    code = "import sys; from neuronjax.cli import app\ntry: app(['ls'])\n"
    code += "finally: assert 'jax' not in sys.modules"
    source = Path(cli.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        check=False,
    )
    assert b"Assertion" not in done.stderr
    assert b"trn2" in done.stdout
