"""Find the part of the model that an op belongs to; all reports use this part.

A part is the first of the following that a framework provides: 1. the name stack: Flax
linen, Haiku, `jax.named_scope`; 2. the path of the parameter that the op uses: Flax
NNX, Equinox, pytrees. An op without a parameter gets the path of the nearest op with a
path in the same call of the same layer. Ops between a layer's children, such as
attention between q, k, v and o, get the common part of the children's paths; 3. the
layer or function in which the op was written, "eqx.nn.MLP" or "loss_fn", which is in
its location. An optimizer's op belongs to the parameter that it updates.

A program is captured without its parts, which cost a tenth of a capture. Reports, rules
that name a module, and statistics add them.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from neuronjax.ir.argument_names import modules_of_arguments
from neuronjax.ir.descent import Descent, descent_of_ops
from neuronjax.ir.name_stack import read_name_stack
from neuronjax.ir.phases import Readers, phases_of, phases_of_callees
from neuronjax.ir.program import ANY, Function, Location, Op, Program, Region

_Layer = tuple[str, ...]
_Path = tuple[str, ...]


def with_parts(program: Program) -> Program:
    """Return the program with module and phase in its locations."""
    if program.has_parts:
        return program
    read = descent_of_ops(program)
    names = program.argument_names
    by_name = modules_of_arguments(names)
    modules = {n: by_name[name] for n, name in enumerate(names) if name in by_name}
    scopes = _scopes_of_modules(program, read, modules)
    roots = frozenset(name.partition("/")[0] for name in names)
    locations: dict[Op, Location] = {}
    placed = cache(lambda location, **known: replace(location, **known))
    graphs = {name: Readers(f) for name, f in program.functions.items()}
    inside = {name: phases_of(graph, read) for name, graph in graphs.items()}
    called = phases_of_callees(program, dict(ChainMap(*inside.values())))
    for name, graph in graphs.items():
        phases = inside[name]
        own = _own_modules(graph, read, modules, scopes)
        parts = _PartFinder(graph, phases, own, roots).find()
        locations |= {
            op: placed(
                op.location,
                functions=_functions(op, graph),
                module=parts[op],
                phase=phases[op] or called[name],
            )
            for op in graph.ops
        }
    functions = {
        name: Function(name, _placed(function.body, locations))
        for name, function in program.functions.items()
    }
    return replace(program, functions=functions, has_parts=True)


def _functions(op: Op, graph: Readers) -> _Layer:
    """Return the functions that led to an op. JAX places a constant at the call of the
    whole program, so a constant gets those of the first op that reads it."""
    own = op.location.functions
    if own or op.operands:
        return own
    readers = (reader.location.functions for reader in graph.after(op))
    return next(filter(None, readers), ())


def _placed(region: Region, found: Mapping[Op, Location]) -> Region:
    ops = []
    for op in region.ops:
        regions = tuple([_placed(inner, found) for inner in op.regions])
        made = op.operands, op.results, op.attributes, regions, found[op]
        ops.append(Op(op.name, *made))
    return Region(region.arguments, tuple(ops), region.results)


# -- the module of an op by itself -----------------------------------------------------


def _scope(op: Op) -> str:
    return "/".join(read_name_stack(op.location.scope).names)


def _scopes_of_modules(
    program: Program, read: Mapping[Op, Descent], modules: Mapping[int, str]
) -> dict[str, str]:
    """Return, by module, the shortest name stack of ops that read its parameters."""
    scopes_of: dict[str, set[str]] = defaultdict(set)
    for op in program.walk():
        scope = _scope(op)
        for module in {modules.get(n, "") for n in read[op].arguments} if scope else ():
            scopes_of[module].add(scope)
    return {
        module: min(scopes, key=len) for module, scopes in scopes_of.items() if module
    }


def _own_modules(
    graph: Readers,
    read: Mapping[Op, Descent],
    modules: Mapping[int, str],
    scopes: Mapping[str, str],
) -> dict[Op, str]:
    """Return the modules of ops that have a name stack or a parameter themselves."""
    found = {}
    for op in graph.ops:
        scope = _scope(op)
        if scope:
            found[op] = scope
            continue
        held = {modules[n] for n in read[op].arguments if n in modules}
        shared = _shared([tuple(scopes.get(m, m).split("/")) for m in sorted(held)])
        if shared:
            found[op] = "/".join(shared)
    return found


def _shared(paths: Sequence[_Path]) -> _Path:
    """Return the common prefix of paths, with `ANY` where list indices differ."""
    if len(paths) < 2:
        return paths[0] if paths else ()
    shared = []
    for column in zip(*paths, strict=False):
        alike = set(column)
        if len(alike) > 1 and not all(part.isdigit() for part in alike):
            break
        shared.append(column[0] if len(alike) == 1 else ANY)
    return tuple(shared) if any(part != ANY for part in shared) else ()


# -- the module of an op by its neighbours ---------------------------------------------


def _layer(op: Op) -> _Layer:
    """Return the last two layers that led to an op; functions if there is no layer."""
    classes = read_name_stack(op.location.scope).classes
    return _layers(op.location.functions, classes)[-2:]


def _layers(functions: _Layer, classes: _Layer) -> _Layer:
    layers = tuple(name for name in functions if name[:1].isupper())
    return (*(layers or functions), *classes)


class _PartFinder:
    """Finds the modules of a function's ops, from the ops that have one themselves."""

    def __init__(
        self,
        graph: Readers,
        phases: Mapping[Op, str],
        own: Mapping[Op, str],
        roots: frozenset[str],
    ) -> None:
        self._graph, self._phases = graph, phases
        self._own, self._found = own, dict(own)
        self._latest: dict[_Path, str] = {}
        self._layers = {op: _layer(op) for op in graph.ops}
        forms = _forms(
            (op.location.functions, read_name_stack(op.location.scope).classes, module)
            for op, module in own.items()
        )
        # A path that ends in an argument's name, such as "params", is no layer's.
        self._forms = {k: f for k, f in forms.items() if f and f[-1] not in roots}

    def find(self) -> dict[Op, str]:
        """Return the module of every op, "" if only its function is known."""
        graph = self._graph
        backwards = graph.ops[::-1]
        self._spread(backwards, self._updated)
        self._spread(graph.ops, lambda op: self._same(op, graph.before(op), last=True))
        self._spread(backwards, lambda op: self._same(op, graph.after(op)))
        self._spread(graph.ops, lambda op: self._same(op, graph.before(op), last=True))
        self._spread(graph.ops, lambda op: self._same(op, graph.beside(op)))
        self._spread(graph.ops, self._around)
        self._spread(backwards, self._constant)
        return {op: self._found.get(op, "") for op in graph.ops}

    def _spread(self, ops: Sequence[Op], rule: Callable[[Op], str]) -> None:
        for op in ops:
            if op not in self._found and (module := rule(op)):
                self._found[op] = module

    def _updated(self, op: Op) -> str:
        """Return the one module that the readers of the op's result update, or ""."""
        late = [o for o in self._graph.after(op) if self._updates(op, o)]
        return _only(self._found.get(other, "") for other in late)

    def _updates(self, op: Op, reader: Op) -> bool:
        if self._phases[reader] == "optimizer":
            return self._phases[op] in ("backward", "optimizer")
        is_alike = self._layers[op] == self._layers[reader] != ()
        return self._phases[op] == "backward" and is_alike

    def _same(self, op: Op, others: Iterable[Op], last: bool = False) -> str:
        """Return the module of all `others` in the op's layer, "" if they have several;
        if `last`, the module of the last of them."""
        layers, found = self._layers, self._found
        layer = layers[op]
        if not layer or self._phases[op] == "optimizer":
            return ""
        modules = [found[o] for o in others if o in found and layers[o] == layer]
        return modules[-1] if modules and last else _only(modules)

    def _around(self, op: Op) -> str:
        """Return the path of the op's layer, from the nearest op in such a layer."""
        form = self._forms.get(self._layers[op])
        if not form or self._phases[op] == "optimizer":
            return ""
        before = reversed([*self._graph.before(op)])
        near = (*before, *self._graph.after(op))
        places = (self._found.get(other, "") for other in near)
        for module in (*places, self._latest.get(form, "")):
            path = tuple(module.split("/"))[: len(form)]
            if _form(path) == form:
                self._latest[form] = "/".join(path)
                return self._latest[form]
        return ""

    def _constant(self, op: Op) -> str:
        if op.operands or op.regions:
            return ""
        modules = (self._found.get(reader, "") for reader in self._graph.after(op))
        return next(filter(None, modules), "")


def _only(modules: Iterable[str]) -> str:
    different = {*modules} - {""}
    return different.pop() if len(different) == 1 else ""


def _forms(heard: Iterable[tuple[_Layer, _Layer, str]]) -> dict[_Layer, _Path]:
    """Return the common path of each layer's parameters; list indices become `ANY`."""
    below: dict[_Layer, set[_Path]] = defaultdict(set)
    for functions, classes, module in heard:
        form = _form(tuple(module.split("/")))
        stack = _layers(functions, classes)
        for n in range(len(stack)):  # every two layers, one inside the other
            below[stack[max(0, n - 1) : n + 1]].add(form)
    return {layer: _proper(sorted(forms)) for layer, forms in below.items()}


def _form(path: _Path) -> _Path:
    return tuple(ANY if part.isdigit() else part for part in path)


def _proper(forms: Sequence[_Path]) -> _Path:
    """Return the common prefix of forms, without the last part of the shortest one."""
    most = min(map(len, forms)) - 1
    alike = [set(column) for column in zip(*forms, strict=False)][:most]
    count = next((n for n, parts in enumerate(alike) if len(parts) > 1), len(alike))
    return forms[0][:count]
