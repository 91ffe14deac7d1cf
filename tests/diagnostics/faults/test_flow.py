"""Along which values an error came, by figures that a run might have shown."""

import pytest

import neuronjax as nj
from neuronjax.diagnostics.faults.evidence import OpEvidence
from neuronjax.diagnostics.faults.flow import Flow
from neuronjax.diagnostics.faults.recorder import OpTrace, Recorder
from neuronjax.diagnostics.faults.shares import Share
from neuronjax.diagnostics.parallel_runs import OpPath
from neuronjax.ir.value_sources import ValueSources
from tests.arrays import normal

E4M3_UNIT = 2.0**-4


def share(error: float, norm: float = 1.0) -> Share:
    nothing = dict.fromkeys(Share._fields, 0)
    return Share(**nothing | {"error": error, "elements": 64, "norm": norm})


def owes_to_chance(
    *steps: tuple[float, float],
    unit: float = E4M3_UNIT,
    norm: float = 1.0,
    moved: float = 0.0,
) -> bool:
    """Ask of the last product; each has an error of its own, one in the run, and a
    result of this norm. In FP32, perturbed data change a result by `moved`."""
    x = normal(8, 8)
    arguments = (x,) * (len(steps) + 1)

    def products(x, *others):
        for other in others:
            x = x @ other
        return x

    program = nj.jit(products).lower(*arguments).program
    recorder, before = Recorder(units={}), 0.0
    ops = (op for op in program.walk() if op.name == "stablehlo.dot_general")
    for op, (own, error) in zip(ops, steps, strict=True):
        left, right = op.operands
        operands = {left: share(before), right: share(0.0)}
        of_none = dict(absorbed=(0.0, 0.0), wrapped=0, misread=0, rounds_whole=False)
        result = share(error, norm if (own, error) == steps[-1] else 1.0)
        result = result._replace(data_error=error if unit == E4M3_UNIT else moved)
        evidence = OpEvidence(result, operands, own, cut_off={}, **of_none)
        path, before = OpPath((), op), error
        recorder.traces[path] = OpTrace(path, evidence)
    [value] = program.entry.body.results
    return Flow(ValueSources(program), recorder).owes_to_chance(value, unit, 0.0)


@pytest.mark.parametrize(
    ("is_chance", "steps"),
    [
        (True, [(0.04, 0.04), (0.05, 0.5), (0.05, 0.6)]),
        (True, [(0.04, 0.04), (0.05, 0.5), (0.45, 0.6)]),
        (False, [(0.04, 0.04), (0.05, 0.1), (0.45, 0.6)]),
        (False, [(0.04, 0.04), (0.4, 0.5), (0.45, 0.6)]),
    ],
    ids=["grown", "grown and then lost", "lost", "lost before"],
)
def test_what_has_no_digits_in_8_bits_cannot_lose_any(is_chance, steps):
    assert owes_to_chance(*steps) is is_chance


@pytest.mark.parametrize(
    ("error", "moved", "is_chance"),
    [(4.2e-6, 1.0, True), (2e-3, 1.0, False), (4.2e-6, 0.05, False)],
    ids=["noise", "of wrong terms", "not moved by data"],
)
def test_a_product_that_float64_cancels_is_noise_if_data_change_all_of_it(
    error, moved, is_chance
):
    """The gradient of an attention's key bias, after some steps of training."""
    steps = (error, error), (1.0, 8e8)
    given = {"unit": 2.0**-24, "norm": 1e-15, "moved": moved}
    assert owes_to_chance(*steps, **given) is is_chance
