"""Makes options of commands from signature and docstring of a public function (*verb*).

A command names keywords of its verb, which become options. Type and default are those
of the signature, and the help is the first sentence of the keyword's entry under
`Args:`; the rest of the entry is for callers in Python.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

import neuronjax as nj
from neuronjax.errors import NeuronJaxError

#: Keywords whose options are not made here: commands declare them as parameters.
_SHARED = {"target", "policy"}
_flags: ContextVar[Mapping[str, str]] = ContextVar("_flags")  # keyword -> option
_SCALARS = {"int": int, "float": float, "bool": bool}
_ENTRY = re.compile(r"^    (\w+): (.+(?:\n {5,}.+)*)", re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offer:
    """The differences between an option and the default option for the same keyword."""

    flag: str = ""  # the option's name; "" for the name of the keyword
    short: str = ""  # a second name, of one letter
    metavar: str | None = None  # the name of the value in the help
    help: str = ""  # for values that are written differently on the command line
    repeated: bool = False  # whether the option can be given several times
    #: Converts the text, or list of texts, to the verb's argument.
    read: Callable[[Any], Any] = lambda value: value


def options_of(
    verb: Callable[..., Any], *keywords: str, **offers: Offer
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds options for keywords of a verb to a command.

    The options come before the command's keyword-only parameters. The command gets
    their values as `**keywords`, without the options whose value is None.

    Args:
        verb: the public function.
        *keywords: keywords that get the default option.
        **offers: keywords whose option differs from the default; these come first.
    """
    chosen = {**offers, **dict.fromkeys(keywords, Offer())}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        flags = {name: f"--{name}" for name in _SHARED & own.parameters.keys()} | {
            k: o.flag or f"--{k.replace('_', '-')}" for k, o in chosen.items()
        }

        @functools.wraps(command)
        def called(**given: Any) -> None:
            _flags.set(flags)
            for keyword, offer in chosen.items():
                value = given.pop(keyword)
                if value is not None:
                    given[keyword] = offer.read(value)
            try:
                command(**given)
            except NeuronJaxError as error:
                raise error.changed(
                    what=in_options(error.what, flags),
                    remedy=error.remedy and in_options(error.remedy, flags),
                ) from error

        every = own.parameters.values()
        before = [p for p in every if p.kind is p.POSITIONAL_OR_KEYWORD]
        after = [p for p in every if p.kind is p.KEYWORD_ONLY]
        offered = [_parameter(verb, *each) for each in chosen.items()]
        signature = own.replace(parameters=[*before, *offered, *after])
        vars(called)["__signature__"] = signature
        return called

    return decorate


def in_options(text: str, flags: Mapping[str, str]) -> str:
    """Replace keywords in a message by options, with their values:
    "price_per_hour={'trn1.2xlarge': 2}" becomes "--price trn1.2xlarge=2"."""
    for keyword, flag in flags.items():
        text = re.sub(rf"\b{keyword}=(['\"])([\w.,=-]+)\1", rf"{flag} \2", text)
        text = re.sub(rf"\b{keyword}=(?=[\s,;:)]|$)", flag, text)
        text = re.sub(rf"\b{keyword}=\{{'([^']+)': ([^}}]+)\}}", rf"{flag} \1=\2", text)
        # A value that is a call, such as policy=Policy(...), stays Python code.
        text = re.sub(rf"\b{keyword}=(?=[^\s(]+(?:[\s,;)]|$))", f"{flag} ", text)
        # A keyword without "_", such as "steps", may be an ordinary word.
        if "_" in keyword:
            text = re.sub(rf"\b{keyword}\b", flag, text)
        # "policy=x (--policy x)" has become "--policy x (--policy x)": keep one.
        text = re.sub(rf"({flag} \S+) \(\1\)", r"\1", text)
    return text


class CommandConsole(Console):
    """A console that prints option names for the Python keywords in a result."""

    def render_str(self, text: str, **given: Any) -> Text:
        """Return `text` as a Text, with option names for Python keywords."""
        return super().render_str(in_options(text, _flags.get({})), **given)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render `renderable`; a Text gets option names for Python keywords."""
        if isinstance(renderable, Text):
            words = in_options(renderable.plain, _flags.get({}))
            if words != renderable.plain:
                renderable = renderable.copy()
                renderable.plain = words
        return super().render(renderable, options)


def _parameter(
    verb: Callable[..., Any], keyword: str, offer: Offer
) -> inspect.Parameter:
    declared = inspect.signature(verb).parameters[keyword]
    kind: Any = _SCALARS.get(str(declared.annotation).split(" | ")[0], str)
    default = ... if declared.default is declared.empty else declared.default
    if offer.repeated:
        kind, default = list[kind], None
    option = typer.Option(
        default,
        *filter(None, [offer.flag or f"--{keyword.replace('_', '-')}", offer.short]),
        help=(offer.help or help_of(verb, keyword)) + " Repeatable." * offer.repeated,
        metavar=offer.metavar,
    )
    kind = kind | None if default is None else kind
    return inspect.Parameter(
        keyword, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind
    )


def help_of(verb: Callable[..., Any], keyword: str) -> str:
    """Return the first sentence about a keyword in a verb's docstring. If the entry is
    "as `other`", return the sentence from the docstring of the verb `other`."""
    section = inspect.cleandoc(verb.__doc__ or "").partition("\nArgs:\n")[2]
    entries = {name: " ".join(text.split()) for name, text in _ENTRY.findall(section)}
    text = entries[keyword]
    if elsewhere := re.match(r"as `(?:neuronjax\.)?(\w+)`", text):
        return help_of(getattr(nj, elsewhere[1]), keyword)
    sentence = re.split(r"(?<=\.) (?=[A-Z])", text)[0]
    sentence = re.sub(r"\bNone (for|means)\b", "default:", sentence)
    if sentence.startswith("of "):  # the keyword is the noun before "of"
        sentence = f"{keyword.replace('_', ' ')} {sentence}"
    return sentence[0].upper() + sentence[1:]
