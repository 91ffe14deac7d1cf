"""The names and keywords of NKI in the text of a kernel's file.

Nothing is executed. Aliases made by imports and plain assignments are followed; names
from `from ... import *` are not. A method counts as one of `NkiTensor` if the object is
known to be one: a kernel's argument, the result of a call of `nki.language`, or a part
or view of those. Methods of other objects are not counted, because library kernels have
their own views with such methods.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from neuronjax.errors import InvalidProgramError
from neuronjax.nki.releases.release import NEWER, OLDER

#: Name of an imported package -> its namespace; the longest names come first.
_NAMESPACES = {
    "neuronjax.nki.legacy": OLDER,
    "neuronxcc.nki": OLDER,
    "neuronjax.nki": NEWER,
    "nki": NEWER,
}
_METHODS = "nki.language.NkiTensor"
#: Functions whose results are tensors.
_MAKERS = frozenset(
    f"nki.language.{name}"
    for name in ("ndarray", "zeros", "ones", "full", "zeros_like", "load", "copy")
)


@dataclass(frozen=True, kw_only=True)
class NkiUse:
    """A place in a file that uses a name of NKI."""

    #: The name, which begins with `nki.` in both styles; or the namespace of an import,
    #: or a keyword of Python that NKI refuses.
    name: str
    line: int  # line number from 1
    older: bool = False  # whether it is from `neuronxcc.nki`
    call: bool = False  # whether it is called
    positional: int = 0  # number of positional arguments
    #: A given keyword, or a position from "0" -> the type of its literal, or "".
    keywords: Mapping[str, str] = field(default_factory=dict)
    is_open: bool = False  # whether `*` or `**` hides arguments
    valued: bool = False  # whether the call's result is used


def uses_of_file(path: Path) -> list[NkiUse]:
    """Return the uses of NKI names in a file of Python, by line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidProgramError(
            f"cannot read {path}: {error}", op="nki", remedy="name a Python file"
        ) from None
    return uses(text, str(path))


def uses(text: str, path: str) -> list[NkiUse]:
    """Return the uses of NKI names in a text of Python, by line, equal uses of a line
    once."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise InvalidProgramError(
            f"no Python: {getattr(error, 'msg', error)}",
            op="nki",
            location=f"{path}:{line}" if line else path,
            remedy="correct the syntax",
        ) from None
    reader = _Reader()
    for node in ast.walk(tree):
        reader.follow_imports(node)
    reader.visit(tree)
    unique: list[NkiUse] = []
    for use in sorted(reader.found, key=lambda u: (u.line, u.name)):
        if use not in unique[-8:]:
            unique.append(use)
    return unique


@dataclass(eq=False)
class _Reader(ast.NodeVisitor):
    found: list[NkiUse] = field(default_factory=list)
    #: Local name -> its dotted name of NKI.
    aliases: dict[str, str] = field(default_factory=dict)
    tensors: set[str] = field(default_factory=set)
    in_kernel: bool = False  # whether an enclosing function uses NKI
    called: dict[ast.AST, ast.Call] = field(default_factory=dict)
    discarded: set[ast.AST] = field(default_factory=set)

    def follow_imports(self, node: ast.AST) -> None:
        """Note the aliases that an import makes; ignore other nodes."""
        if isinstance(node, ast.Import):
            for name in node.names:
                local = name.asname or name.name.partition(".")[0]
                stands = name.name if name.asname else local
                self._imported(node, name.name, local, stands)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in node.names:
                full = f"{node.module}.{name.name}"
                self._imported(node, full, name.asname or name.name, full)
                if "." in _named(full)[1]:
                    self._add(full, node)

    def _imported(self, node: ast.stmt, full: str, local: str, stands: str) -> None:
        space, _ = _named(full)
        if space:
            self.aliases[local] = stands
            if not any(u.name == space and u.line == node.lineno for u in self.found):
                older = space == OLDER
                self.found.append(NkiUse(name=space, line=node.lineno, older=older))
        elif full == "neuronxcc":
            self.aliases[local] = full

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        full = self._full(node.value)
        if full and len(node.targets) == 1 and isinstance(target, ast.Name):
            self.aliases[target.id] = full
        if isinstance(target, ast.Name):
            made = self.tensors.add if self._is_tensor(node.value) else None
            (made or self.tensors.discard)(target.id)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        self.discarded.add(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self.called[node.func] = node
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        full = self.aliases.get(node.id, "")
        if isinstance(node.ctx, ast.Load) and "." in _named(full)[1]:
            self._add(full, node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        full = self._full(node)
        if full:
            self._add(full, node)
            return
        if node in self.called and self._is_tensor(node.value):
            self._record(f"{_METHODS}.{node.attr}", node, older=False)
        self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outside = self.in_kernel, set(self.tensors)
        self.tensors -= {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
        made = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
        if self._is_newer(made):
            self._check_signature(node)
            self.tensors |= {argument.arg for argument in node.args.args}
        self.in_kernel = self.in_kernel or self._is_newer(ast.walk(node))
        self.generic_visit(node)
        self.in_kernel, self.tensors = outside

    def visit_Compare(self, node: ast.Compare) -> None:
        if self.in_kernel and any(isinstance(o, ast.Is | ast.IsNot) for o in node.ops):
            self._syntax("is", node)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if self.in_kernel and isinstance(node.test, ast.Name):
            self._syntax("while register", node)
        self.generic_visit(node)

    def _check_signature(self, node: ast.FunctionDef) -> None:
        if node.args.kwonlyargs:
            self._syntax("* in a kernel's signature", node)
        defaults = (*node.args.defaults, *node.args.kw_defaults)
        if any(isinstance(d, ast.List) for d in defaults):
            self._syntax("a list as default of a kernel", node)

    def _syntax(self, what: str, node: ast.stmt | ast.expr) -> None:
        self.found.append(NkiUse(name=f"python: {what}", line=node.lineno))

    def _is_newer(self, nodes: Iterable[ast.AST]) -> bool:
        return any(_named(self._full(n))[0] == NEWER for n in nodes)

    def _is_tensor(self, node: ast.expr) -> bool:
        """Return whether an expression is known to be a tensor or a view of one."""
        while isinstance(node, ast.Subscript | ast.Call | ast.Attribute):
            if isinstance(node, ast.Call) and (full := self._full(node.func)):
                return _named(full)[1] in _MAKERS
            node = node.func if isinstance(node, ast.Call) else node.value
        return isinstance(node, ast.Name) and node.id in self.tensors

    def _full(self, node: ast.AST) -> str:
        """Return the dotted name of NKI that an expression denotes, or ""."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.aliases:
            return ""
        full = ".".join((self.aliases[node.id], *reversed(parts)))
        return full if _named(full)[0] else ""

    def _add(self, full: str, node: ast.AST) -> None:
        space, name = _named(full)
        self._record(name, node, older=space == OLDER)

    def _record(self, name: str, node: ast.AST, *, older: bool) -> None:
        line = getattr(node, "lineno", 0)
        call = self.called.get(node)
        if call is None:
            self.found.append(NkiUse(name=name, line=line, older=older))
            return
        use = NkiUse(
            name=name, line=line, older=older, call=True,
            positional=len(call.args), keywords=dict(_given(call)),
            is_open=any(isinstance(a, ast.Starred) for a in call.args)
            or any(k.arg is None for k in call.keywords),
            valued=call not in self.discarded,
        )  # fmt: skip
        self.found.append(use)


def _named(full: str) -> tuple[str, str]:
    """Return the namespace of a name, and the name with the prefix `nki` in its
    place."""
    for start, space in _NAMESPACES.items():
        if full == start or full.startswith(f"{start}."):
            return space, "nki" + full[len(start) :]
    return "", ""


def _given(call: ast.Call) -> Iterator[tuple[str, str]]:
    for n, argument in enumerate(call.args):
        yield str(n), _literal(argument)
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, _literal(keyword.value)


def _literal(node: ast.expr) -> str:
    return type(node.value).__name__ if isinstance(node, ast.Constant) else ""
