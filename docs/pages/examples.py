"""The examples of the repository: what each says of itself, and its code."""

from __future__ import annotations

import ast
from pathlib import Path

_INTRODUCTION = """# Examples

These are the programs in `examples/`, which the tests run. You can read and copy each
file.
"""


def page(root: Path) -> str:
    """The page.

    Args:
        root: the folder `examples`.
    """
    files = sorted(path for path in root.rglob("*.py") if "tests" not in path.parts)
    return "\n".join((_INTRODUCTION, *(_example(path, root) for path in files)))


def anchor(name: str) -> str:
    """Where an example is on the page, by its path below `examples`."""
    return "".join(c if c.isalnum() else "-" for c in name.lower())


def _example(path: Path, root: Path) -> str:
    source = path.read_text(encoding="utf-8")
    name = path.relative_to(root).as_posix()
    said = ast.get_docstring(ast.parse(source)) or ""
    code = "".join(f"    {line}" for line in source.splitlines(keepends=True))
    return (
        f"## {name} {{ #{anchor(name)} }}\n\n{said}\n\n"
        f'??? example "examples/{name}"\n\n    ```python\n{code}    ```\n'
    )
