"""The reference: every public name, on a page of its kind, from its docstring.

A name that `GROUPS` does not place goes to the last page, so that none is missing.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import neuronjax
import neuronjax.testing


@dataclass(frozen=True, kw_only=True)
class Group:
    """One page.

    Attributes:
        title: of it.
        text: what the names have in common.
        names: dotted, below `neuronjax`.
    """

    title: str
    text: str
    names: tuple[str, ...]


GROUPS: dict[str, Group] = {
    "programs": Group(
        title="Running programs",
        text="`jit` is `jax.jit` with the numbers of a chip. `load` loads saved "
        "programs. `lower` and `compile` show the steps in between.",
        names=(
            *("jit", "emulated", "Emulated", "Lowered", "Compiled", "load"),
            *("keep_compiled", "exportable"),
        ),
    ),
    "policies": Group(
        title="Policies",
        text="A policy states what may happen to a program's numbers: casts, scales, "
        "rounding, orders of sums. See [choosing a policy](../how-to/policy.md).",
        names=("Policy", "Rule", "policy_scope"),
    ),
    "arrays": Group(
        title="Formats on arrays",
        text="These functions convert JAX arrays to the chips' formats, without a "
        "program. They work under `jit`, `vmap` and `grad`.",
        names=(
            *("cast", "quantize_mx", "MXArray", "sparsify", "SparseArray"),
            "formats",
        ),
    ),
    "devices": Group(
        title="Many chips",
        text="These functions run programs on meshes of emulated devices. A device is "
        "one logical NeuronCore.",
        names=(
            *("make_mesh", "pmap", "local_device_count", "replicate", "unreplicate"),
            *("collective_algorithm", "real_devices"),
        ),
    ),
    "time": Group(
        title="Time and money",
        text="A model predicts times and costs from shapes alone; nothing is run. "
        "See [its constants](../constants.md) and [its errors](../times.md).",
        names=(
            *("profile", "Profile", "estimate", "Estimate", "Machine"),
            *("ServingChipWarning", "estimate_serving", "ServingEstimate"),
            *("collective_bench", "scaling"),
        ),
    ),
    "diagnostics": Group(
        title="Finding out what went wrong",
        text="These functions find what the compiler would refuse, which op makes an "
        "error, what every cast loses, and the order of a sum.",
        names=(
            *("check", "PortabilityReport", "compare", "Comparison", "Collect"),
            *("Statistics", "study", "Study", "reveal_order", "SummationTree"),
            *("search_precision", "PrecisionSearch", "judge", "judge_all"),
            *("KernelVerdict", "nki_diff", "NkiDiff", "tolerance"),
            *("LegalResults", "LegalCheck", "compare_dump", "DumpComparison"),
            "ProgramComparison",
        ),
    ),
    "testing": Group(
        title="Testing",
        text="`neuronjax.testing` guards a model's bits in CI; the pytest plugin "
        "`neuronjax_pytest` is part of the package. See "
        "[goldens](../how-to/ci.md).",
        names=(
            *("testing.golden", "testing.check_stored", "testing.GoldenReport"),
            *("testing.GoldenMismatch", "testing.ProgramChangedWarning"),
            *("testing.assert_bitwise_equal", "testing.assert_ulp"),
            *("testing.BitsDiffer", "testing.LeafDifference"),
            *("testing.assert_same_program", "testing.ProgramsDiffer"),
            *("testing.write_silicon_kit", "testing.check_silicon"),
            *("testing.SiliconReport", "testing.SiliconFinding"),
        ),
    ),
    "errors": Group(
        title="Errors",
        text="Errors have one base class and four categories; see [errors]"
        "(../errors.md).",
        names=(
            *("NeuronJaxError", "UnsupportedError", "UnimplementedError"),
            *("InvalidProgramError", "InternalError", "IntegersInFP32Warning"),
            "NotEmulatedWarning",
            "PrecisionIgnoredWarning",
        ),
    ),
}
_REST = Group(title="More", text="These names are on no other page.", names=())


def public_names() -> tuple[str, ...]:
    """Of the package and of `neuronjax.testing`, dotted, without modules."""
    return (*_names(neuronjax), *(f"testing.{n}" for n in _names(neuronjax.testing)))


def _names(module: object) -> Iterator[str]:
    """Yield the public names; `dir` has those that are imported when asked for."""
    for name in sorted({*dir(module), *vars(module)}):
        if not name.startswith("_") and not inspect.ismodule(getattr(module, name)):
            yield name


def groups() -> dict[str, Group]:
    """The pages by their file, with what no group names on one more."""
    placed = {name for group in GROUPS.values() for name in group.names}
    left = tuple(name for name in public_names() if name not in placed)
    rest = Group(title=_REST.title, text=_REST.text, names=left)
    return {**GROUPS, "more": rest} if left else GROUPS


def page(group: Group) -> str:
    """A page, whose names mkdocstrings fills in."""
    entries = (f"::: neuronjax.{name}\n" for name in group.names)
    return "\n".join((f"# {group.title}\n", f"{group.text}\n", *entries))


def index(found: dict[str, Group]) -> str:
    """All names, by page."""
    parts = [
        "# Python reference\n",
        "These pages are made from the docstrings. They assume `import neuronjax as "
        "nj`.\n",
    ]
    parts += (_listed(file, group.title, group.names) for file, group in found.items())
    return "\n".join(parts)


def _listed(file: str, title: str, names: Sequence[str]) -> str:
    links = ", ".join(f"[`{n}`][neuronjax.{n}]" for n in names)
    return f"**[{title}]({file}.md)**: {links}\n"
