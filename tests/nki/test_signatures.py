"""Rows, `inspect.signature` and `.pyi` files agree, for what is made from data."""

from __future__ import annotations

import ast
import inspect
import re
import typing

import pytest

from neuronjax.errors import user_line
from neuronjax.ir.nki_instructions import SPECS
from neuronjax.nki import isa
from neuronjax.nki.signatures import function_of
from tests.nki.stubs import STUBS, stub


@pytest.mark.parametrize("module", STUBS, ids=lambda m: m.__name__)
def test_a_stub_is_what_the_functions_are(module) -> None:
    path, _ = STUBS[module]
    assert path.read_text() == stub(module), "python -m tests.nki.stubs writes it anew"


def declared() -> dict[str, ast.FunctionDef]:
    """The functions that the stub of nki.isa declares."""
    tree = ast.parse(STUBS[isa][0].read_text())
    return {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}


@pytest.mark.parametrize("name", SPECS)
def test_row_signature_and_stub_name_the_same_parameters(name) -> None:
    spec, function = SPECS[name], declared()[name]
    signature = inspect.signature(getattr(isa, name))
    called = [part.partition("=")[0] for part in spec.call.split(", ")]
    assert called == [a.arg for a in function.args.args] == list(signature.parameters)
    assert {o.name for o in spec.operands if o.kind != "state"} == {*called} - {"name"}
    given = [p for p in signature.parameters.values() if p.default is not p.empty]
    assert len(function.args.defaults) == len(given) == spec.call.count("=")
    assert function.returns is not None
    assert ast.unparse(function.returns) == signature.return_annotation == spec.returns
    for argument, p in zip(
        function.args.args, signature.parameters.values(), strict=True
    ):
        assert argument.annotation is not None
        assert ast.unparse(argument.annotation) == p.annotation


@pytest.mark.parametrize("module", STUBS, ids=lambda m: m.__name__)
def test_types_are_known_where_functions_are_made(module) -> None:
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__.startswith(module.__name__):
            assert typing.get_type_hints(function).keys() >= {"return"}, name


def plain(a, b, c=3):
    """A function without keyword-only parameters."""


def hinted(a, *, b=(2, 3), **hints):
    """A function of the older style."""


CALLS = [
    (plain, (1, 2), {}), (plain, (1,), {"b": 2}), (plain, (), {"b": 2, "a": 1}),
    (plain, (1, 2, 4), {}), (hinted, (1,), {}), (hinted, (), {"a": 1}),
    (hinted, (1,), {"d": 1}), (hinted, (1,), {"b": 5, "d": 1}),
]  # fmt: skip
REFUSED = [
    (plain, (), {}), (plain, (1,), {}), (plain, (1, 2), {"a": 1}),
    (plain, (1, 2), {"d": 1}), (plain, (1, 2, 3, 4), {}), (plain, (1,), {"d": 1}),
    (hinted, (), {}), (hinted, (1, 2), {}), (hinted, (1,), {"a": 1}),
]  # fmt: skip


def made_like(function):
    """The function that hands its arguments on."""
    parameters = [*inspect.signature(function).parameters.values()]
    return function_of(function.__name__, parameters, "Any", {}, lambda given: given)


@pytest.mark.parametrize(("function", "args", "options"), CALLS)
def test_arguments_are_handed_on_by_name(function, args, options) -> None:
    bound = inspect.signature(function).bind(*args, **options)
    bound.apply_defaults()
    assert made_like(function)(*args, **options) == bound.arguments


@pytest.mark.parametrize(("function", "args", "options"), REFUSED)
def test_calls_are_refused_in_the_words_of_python(function, args, options) -> None:
    with pytest.raises(TypeError) as refused:
        function(*args, **options)
    with pytest.raises(TypeError, match=re.escape(str(refused.value))):
        made_like(function)(*args, **options)


def test_the_line_of_an_error_is_the_kernels() -> None:
    made = function_of("made", [], "str", {}, lambda given: user_line())
    assert made().startswith(f"{__file__}:")
