"""Goldens, which test whether any bit of a function's results changed.

    golden("mlp_step", train_step, target="trn2", policy="fp8")(params, batch)

stores the program, its inputs and the bits of its outputs. Later runs check separately
that the *stored* program gives the stored bits, on any host, Python and jaxlib; and
whether the function is still captured as that program, which an edit or another version
of JAX may change.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from neuronjax.api.asked import Asked
from neuronjax.api.lowered import Lowered
from neuronjax.diagnostics.edits.canonical_text import fingerprint
from neuronjax.errors import InvalidProgramError
from neuronjax.policy import Policy
from neuronjax.policy.values import check_word
from neuronjax.testing import golden_compare, golden_file
from neuronjax.testing.bits import bits
from neuronjax.testing.golden_file import GoldenFile, Leaf
from neuronjax.testing.golden_page import row
from neuronjax.testing.golden_report import GoldenMismatch, GoldenReport
from neuronjax.testing.golden_run import Today, run, stored_inputs, x64

ChangedProgram = Literal["warn", "bits", "fail", "edits"]
#: Environment variables with the defaults of the arguments `update`, `changed_program`
#: and `tolerance` of `golden`, and with the session's name. The pytest plugin sets
#: them, also for the processes of pytest-xdist.
UPDATE, CHANGED = "NEURONJAX_UPDATE_GOLDEN", "NEURONJAX_GOLDEN_PROGRAM"
LEGAL = "NEURONJAX_GOLDEN_TOLERANCE"
SESSION = "NEURONJAX_GOLDEN_SESSION"
_CHOICES = ("warn", "bits", "fail", "edits")
_TOLERANCES = ("legal", "none")
_NAME = re.compile(r"[\w.+=,\[\]-]+")


class ProgramChangedWarning(UserWarning):
    """A warning that the program or its arguments differ from the golden's."""


def golden(
    name: str,
    function: Callable[..., Any],
    *,
    target: str | None = None,
    policy: str | Policy | None = None,
    directory: str | os.PathLike[str] = "golden",
    update: bool | None = None,
    changed_program: ChangedProgram | None = None,
    tolerance: Literal["legal", "none"] | None = None,
    rounding_seed: int = 0,
    input_seed: int = 0,
    **jit_options: Any,
) -> Callable[..., GoldenReport]:
    """Guard the bits of a function's results.

    Args:
        name: the name of the files; letters, digits and `_.+=,[]-`.
        function: a function that `jax.jit` takes, or an `Emulated` function, whose
            target and policy are the defaults. Its results include the state that it
            writes into modules of Flax NNX.
        target: as for `neuronjax.compare`.
        policy: as for `neuronjax.compare`.
        directory: the folder of the files; made if it does not exist.
        update: whether to write the files; None to write them if pytest runs with
            `--neuronjax-update-golden`. With False a function is only compared, and
            several functions may use the same name.
        changed_program: what to do if today's program differs from the stored program.
            "edits": fail if its bits differ, but only warn if another JAX made another
            program of the same source; "warn": warn only; "bits": fail if its bits
            differ for any reason; "fail": fail in any case. The same applies to
            arguments that differ from the stored ones. None for the setting of
            the pytest plugin, or without pytest "edits".
        tolerance: "legal" to fail, where a changed program would only warn, if bits are
            outside of `neuronjax.tolerance`. None for the setting of the pytest plugin,
            or without pytest "none".
        rounding_seed: the call index of stochastic rounding.
        input_seed: the seed for arguments that are `ShapeDtypeStruct`s, whose values
            are uniform in [-1, 1), drawn in every run, and not stored.
        **jit_options: options of `neuronjax.jit`, such as `static_argnums`.

    Returns:
        A function of the arguments that returns a `GoldenReport`. With delayed scaling
        the amax history starts empty; its next state is one more result.

    Raises:
        GoldenMismatch: (when called) there is no golden, the arguments are not the
            stored ones, the bits differ, or the program differs and `changed_program`
            makes that a failure.
        InvalidProgramError: the name or an option is wrong; another function, or in a
            pytest session another program, has already used the name; or files are
            damaged.
    """
    if not _NAME.fullmatch(name):
        raise InvalidProgramError(
            f"golden {name!r}", remedy="use letters, digits and _.+=,[]-"
        )
    asked = Asked.of(function, target=target, policy=policy, **jit_options)
    path = Path(directory) / name
    writes = bool(os.environ.get(UPDATE)) if update is None else update
    choice = changed_program or os.environ.get(CHANGED) or "edits"
    legal = tolerance or os.environ.get(LEGAL) or "none"
    check_word("changed_program", choice, _CHOICES)
    check_word("tolerance", legal, _TOLERANCES)

    def check(*args: Any, **kwargs: Any) -> GoldenReport:
        __tracebackhide__ = True
        place = str(path.resolve())
        session = used.setdefault(os.environ.get(SESSION, ""), {})
        session[place] = {}
        today = Today.of(asked, args, kwargs, input_seed)
        twice = "" if update is False else _used_twice(path, asked.step, today)
        report = None
        try:
            if not writes:
                report = golden_compare.compare(name, path, today, choice, legal)
        except GoldenMismatch as error:
            session[place] = row(name, error, str(error))
            if twice:
                error.add_note(twice)
            raise
        if twice:
            raise InvalidProgramError(
                twice,
                remedy="give each golden and each policy its own name; to compare "
                "another function with a golden, pass update=False",
            )
        if report is None:
            report = _write(name, path, today, rounding_seed)
        text = str(report)
        if report.change is not None or report.drift:
            text = golden_compare.change_text(report)
            if not report.written:
                warnings.warn(text, ProgramChangedWarning, stacklevel=2)
        session[place] = row(name, report, text)
        return report

    is_program = isinstance(asked.step, Lowered)
    return check if is_program else functools.wraps(asked.step)(check)


def check_stored(path: str | os.PathLike[str]) -> GoldenReport:
    """Check that a stored program gives the stored bits; needs no function.

    Args:
        path: the path of the golden's files, with or without an ending.

    Raises:
        GoldenMismatch: the bits differ.
        InvalidProgramError: the files are missing or damaged.
    """
    where = Path(path)
    if where.suffix in (".json", ".mlirbc", ".npz"):
        where = where.with_suffix("")
    stored = golden_file.read(where)
    golden_compare.check_bits(where, stored, stored_inputs(stored))
    return GoldenReport(name=where.name, path=where, provenance=dict(stored.provenance))


#: Results of the goldens that this process has used, by session and path, as rows of
#: `golden_page`.
used: dict[str, dict[str, dict[str, Any]]] = {}
#: For every golden that this process has used: the function's name, and its program.
_taken: dict[tuple[str, Path], tuple[str, Any]] = {}


def _used_twice(path: Path, step: Any, today: Today) -> str:
    """Reserve a golden's name for this session; return the fault if another function,
    or in pytest another program, has used the name; otherwise "". Outside of pytest,
    such as in a notebook, the function may be edited, which changes its program."""
    function: Any = inspect.unwrap(step)
    function = getattr(function, "func", function)  # the function of a partial
    named = function if hasattr(function, "__qualname__") else type(function)
    user = f"{named.__module__}.{named.__qualname__}"
    if user.endswith("<lambda>"):
        user += f":{function.__code__.co_firstlineno}"
    asked = (fingerprint(today.program), today.target, today.policy, today.leaves)
    use = user, asked if os.environ.get("PYTEST_CURRENT_TEST") else None
    other = _taken.setdefault((os.environ.get(SESSION, ""), path.resolve()), use)
    if other == use:
        return ""
    return (
        f"golden {path.name} is used twice, by {other[0]} and by {user}, for different "
        "programs, arguments or policies"
    )


def _write(name: str, path: Path, today: Today, rounding_seed: int) -> GoldenReport:
    setting = today.target, today.policy, rounding_seed
    outputs = run(today.program, *setting, today.inputs)
    names = [*today.out_paths, "amax_history"][: len(outputs)]
    leaves = [Leaf.of(n, x).shown(x) for n, x in zip(names, outputs, strict=True)]
    given = [*zip(today.leaves, today.inputs, strict=True)]
    kept = ((i, x) for i, (leaf, x) in enumerate(given) if leaf.seed is None)
    arrays = {f"input/{i}": bits(x) for i, x in kept}
    for i, leaf in enumerate(leaves):
        arrays[f"output/{i}"] = bits(outputs[i])[leaf.sampled]
    new = GoldenFile(
        program=today.code,
        fingerprint=fingerprint(today.program),
        target=today.target,
        policy=today.policy,
        rounding_seed=rounding_seed,
        x64=x64(),
        inputs=tuple(leaf.shown(x) for leaf, x in given),
        outputs=tuple(leaves),
        arrays=arrays,
        provenance=golden_file.provenance(),
        sources=today.sources,
    )
    try:
        old = golden_file.read(path)
    except InvalidProgramError:  # none, damaged, or of another version
        old = None
    written = old is None or not old.same_but_provenance(new)
    if written:
        new.write(path)
    report = GoldenReport(
        name=name, path=path, written=written, provenance=dict(new.provenance)
    )
    if old is None or not written:
        return report
    return golden_compare.changed(report, old, today, outputs)
