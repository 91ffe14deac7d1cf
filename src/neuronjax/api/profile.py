"""`profile`: where the time of a program goes on a chip, and what would save time.

The program is captured and lowered as by `jit`, then scheduled by `timing`. Shapes are
enough: no value is computed unless `Profile.outputs` is read. Times are predictions of
a model for one logical NeuronCore; `neuronjax constants` lists the model's figures.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from neuronjax.api.asked import Askable, Asked
from neuronjax.api.lowered import Lowered
from neuronjax.api.nnx_state import tied
from neuronjax.api.profile_result import Profile
from neuronjax.diagnostics import kernel_limits as kernels
from neuronjax.diagnostics.limits import Subject, changes
from neuronjax.errors import InvalidProgramError, NeuronJaxError
from neuronjax.execution import stages
from neuronjax.ir.instruction import InstructionProgram
from neuronjax.policy import Policy, Preset
from neuronjax.report.profile_summary import roofs
from neuronjax.timing.hbm import with_donation
from neuronjax.timing.memory import plan_memory
from neuronjax.timing.schedule import schedule
from neuronjax.timing.timeline import Timeline
from neuronjax.timing.work import Core

#: Trip counts of loops whose ends depend on values. Keys are the source line
#: ("file.py:12") or the instruction's ordinal.
Trips = Mapping[str | int, int]


def profile(
    step: Askable,
    *,
    target: str | None = None,
    policy: Preset | str | Policy | None = None,
    lnc: int | None = None,
    peak: str | float = "bf16",
    batch_argnums: int | Sequence[int] = (),
    trips: Trips | None = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., Profile]:
    """Predict where the time of a function goes on a chip.

    Args:
        step: as `compare`, or a kernel of `neuronjax.nki.jit`. A program can be
            profiled without arguments.
        target: as `compare`.
        policy: as `compare`.
        lnc: physical cores per logical core; None for the policy's, else the target's.
        peak: the peak rate for MFU: "bf16", "fp32", "fp8", "mx", "sparse", or a number
            of TFLOPS.
        batch_argnums: the positions of arguments whose leading axis is the batch;
            `limits` then also predicts the time of other batch sizes.
        trips: the number of iterations of loops whose length depends on values, by
            source line ("train.py:12"); by default it is 1, which a note reports.
        static_argnums: as `jax.jit`.
        static_argnames: as `jax.jit`.

    Returns:
        A function of the same arguments (arrays or ShapeDtypeStructs) that returns the
        `Profile`; nothing is run.

    Raises:
        InvalidProgramError: unknown target, policy, peak or LNC size; a kernel with a
            policy.

    Example:
        >>> profiled = nj.profile(train_step, target="trn2")(state, batch)
        >>> print(profiled)
    """
    if kernels.is_kernel(step):
        options = dict(target=target, lnc=lnc, trips=trips, peak=peak)
        return kernels.profiler(step, Profile, _values, policy, options)
    static = dict(static_argnums=static_argnums, static_argnames=static_argnames)
    asked = Asked.of(step, target=target, policy=policy, **static)
    core = Core.of(asked.target, asked.policy.lnc if lnc is None else lnc)
    roofs(core, peak)  # raises for an unknown peak, before the work
    batch = (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums)

    def profiled(*args: Any, **kwargs: Any) -> Profile:
        args, kwargs = tied((args, kwargs))
        with asked.watching():
            lowered = asked.lowered(*args, **kwargs)
            with_batch = functools.partial(_scaled, asked, args, kwargs, batch)
            return _profile(
                asked,
                lowered,
                core,
                trips,
                with_batch if batch and args else None,
                peak=peak,
                _run=lambda: asked.run(*_values(args), **_values(kwargs)),
            )

    return profiled


def _values(arguments: Any) -> Any:
    leaves = jax.tree.leaves(arguments)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        raise InvalidProgramError(
            "the program was profiled for types of arguments, which have no values",
            remedy="pass arrays to the profile, or run the program: nj.jit(f)(...)",
        )
    return arguments


def _scaled(
    asked: Asked, args: tuple, kwargs: dict, batch: Sequence[int], factor: float
) -> InstructionProgram | None:
    """Return the program for `factor` times the batch size; None if impossible."""

    def scaled(leaf: Any) -> Any:
        if not jnp.ndim(leaf):
            return leaf
        size, *rest = leaf.shape
        return jax.ShapeDtypeStruct((int(size * factor), *rest), leaf.dtype)

    leaves = jax.tree.leaves([args[i] for i in batch])
    sizes = {leaf.shape[0] * factor for leaf in leaves if jnp.ndim(leaf)}
    if not sizes or any(size != int(size) or size < 1 for size in sizes):
        return None
    other = [jax.tree.map(scaled, x) if i in batch else x for i, x in enumerate(args)]
    try:
        return asked.captured(*other, **kwargs).instructions
    except (TypeError, ValueError, NeuronJaxError):
        return None  # the program permits only one batch size


def _profile(
    asked: Asked,
    lowered: Lowered,
    core: Core,
    trips: Trips | None,
    with_batch: Callable[[float], InstructionProgram | None] | None,
    **options: Any,
) -> Profile:
    target, policy = asked.target, asked.policy
    instructions, placement = lowered.captured.instructions, policy.placement
    stages.stage("pricing")
    plan = plan_memory(instructions, core, lowered.program.argument_names)
    plan = with_donation(plan, lowered.donated)

    def price(instructions: InstructionProgram, other: Core) -> Timeline:
        # With another LNC size, the numbers of logical cores refer to other cores.
        cores = placement if other.lnc == core.lnc else ()
        return schedule(instructions, other, target, trips=trips, placement=cores)

    timeline = schedule(
        instructions, core, target, trips=trips, plan=plan, placement=placement
    )
    subject = Subject(
        program=lowered.program, instructions=instructions, target=target, core=core,
        policy=policy, timeline=timeline, price=price, with_batch=with_batch,
    )  # fmt: skip
    return Profile(
        name=asked.name,
        timeline=timeline,
        core=core,
        target=target,
        policy=policy,
        _find_changes=lambda: changes(subject),
        _program=lowered,
        **options,
    )
