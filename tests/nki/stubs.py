"""What `.pyi` files say of functions that are made from data, for editors and pyright.

`python -m tests.nki.stubs` writes them anew; `test_signatures` compares them.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import neuronjax
from neuronjax.nki import isa
from neuronjax.nki.isa.constants import FP32_MIN
from neuronjax.nki.legacy import isa as older

SOURCE = Path(neuronjax.__file__).parent / "nki"
#: Module -> its stub, and what of the types in it comes from where.
STUBS: dict[ModuleType, tuple[Path, str]] = {
    isa: (
        SOURCE / "isa" / "__init__.pyi",
        "from neuronjax.nki.tensor import NkiTensor\n",
    ),
    older: (
        SOURCE / "legacy" / "isa.pyi",
        "from neuronjax.nki.legacy.tiles import Tile\n",
    ),
}
HEAD = '''# Made from the rows of ir.nki_instructions: python -m tests.nki.stubs
# fmt: off
# ruff: noqa
"""{title}"""

from collections.abc import Sequence
from typing import Any, NoReturn

from neuronjax.nki.isa.constants import FP32_MIN
'''


_STARS = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def stub(module: ModuleType) -> str:
    """Return the text of a module's stub."""
    title, imports = (module.__doc__ or "").splitlines()[0], STUBS[module][1]
    public = {n: v for n, v in vars(module).items() if _is_public(module, n, v)}
    parts = [HEAD.format(title=title) + imports, *_others(public)]
    functions = [f for f in public.values() if inspect.isfunction(f)]
    own = [f for f in functions if not _is_imported(module, f)]
    return "".join(parts) + "".join(map(_declaration, sorted(own, key=_name)))


def _name(function: Any) -> str:
    return function.__name__


def _is_public(module: ModuleType, name: str, value: Any) -> bool:
    is_type = inspect.isclass(value) and value.__module__.startswith("neuronjax.nki")
    kinds = is_type or isinstance(value, enum.Enum) or inspect.isfunction(value)
    imported = ("Box", "Tile", "NkiTensor") if module is older else ()
    return kinds and not name.startswith("_") and name not in imported


def _is_imported(module: ModuleType, function: Any) -> bool:
    """Whether another file declares it with its own signature."""
    return not function.__module__.startswith(module.__name__)


def _others(public: dict[str, Any]) -> Iterator[str]:
    """Yield the classes and members of enumerations that a module has as well."""
    for name, value in sorted(public.items()):
        if inspect.isclass(value):
            yield f"from {value.__module__} import {name} as {name}\n"
        elif isinstance(value, enum.Enum):
            yield f"from {type(value).__module__} import {name} as {name}\n"


def _declaration(function: Any) -> str:
    parameters = inspect.signature(function).parameters.values()
    listed, starred = [], False
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not starred:
            listed.append("*")
            starred = True
        text = f"{_STARS.get(p.kind, '')}{p.name}: {_text(p.annotation)}"
        listed.append(
            text + ("" if p.default is p.empty else f" = {_value(p.default)}")
        )
    returns = _text(inspect.signature(function).return_annotation)
    first = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    head = f"def {function.__name__}({', '.join(listed)}) -> {returns}:"
    return f'\n{head}\n    """{first}"""\n'


def _text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else annotation.__name__


def _value(default: Any) -> str:
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    return "FP32_MIN" if default == FP32_MIN else repr(default)


if __name__ == "__main__":
    for made, (path, _) in STUBS.items():
        path.write_text(stub(made), encoding="utf-8")
