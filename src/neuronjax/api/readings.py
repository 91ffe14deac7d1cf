"""Predicts the times of a lowered program, and displays the program.

`api.lowered` imports this file when it is first used, so `jit` needs no time model.
"""

from __future__ import annotations

from rich.console import RenderableType

from neuronjax.api.lowered import Lowered
from neuronjax.ir.text import instruction_text
from neuronjax.report.places import place
from neuronjax.report.program_display import program_table
from neuronjax.timing.memory import plan_memory
from neuronjax.timing.schedule import schedule
from neuronjax.timing.timeline import Timeline
from neuronjax.timing.work import Core


def timeline(lowered: Lowered, lnc: int | None) -> Timeline:
    """Return the predicted schedule of every engine of one logical core."""
    core = Core.of(lowered.target, lowered.policy.lnc if lnc is None else lnc)
    instructions = lowered.captured.instructions
    plan = plan_memory(instructions, core, lowered.program.argument_names)
    placement = lowered.policy.placement
    return schedule(instructions, core, lowered.target, plan=plan, placement=placement)


def table(lowered: Lowered) -> RenderableType:
    return program_table(lowered.name, lowered.captured.instructions, lowered.setting)


def instructions(lowered: Lowered) -> str:
    return instruction_text(lowered.captured.instructions, place)
