"""Verdicts on made-up runs, of which it is known how they differ."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from neuronjax.report.study_curves import Curve
from neuronjax.report.study_verdicts import Interval, mean_interval, training_verdicts

STEPS = np.arange(200)


def fall(speed=1.0, floor=0.0, *, seeds=5, noise=0.01, sign=1.0, generator=0):
    """Losses that fall from 4 to `floor` + 1, every seed with an offset of its own."""
    own = np.random.default_rng(generator)
    offsets = np.random.default_rng(99).normal(size=(seeds, 1)) * 0.02
    mean = 1 + floor + (3 - floor) * np.exp(-STEPS * speed / 80)
    values = mean + offsets + own.normal(size=(seeds, len(STEPS))) * noise
    return Curve(tuple(range(seeds)), STEPS, sign * values)


def verdict(own, base=None, *, confidence=0.95, margin=0.02):
    found = {"native": base or fall(seeds=len(own.seeds)), "fp8": own}
    options = dict(margin=margin, last=20, confidence=confidence)
    return training_verdicts(found, "native", **options)["fp8"]


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("count", [2, 3, 7, 40])
def test_the_interval_is_student_s(count, confidence):
    values = np.random.default_rng(count).normal(size=count)
    found = mean_interval(values, confidence)
    wanted = scipy.stats.t.interval(
        confidence, count - 1, values.mean(), scipy.stats.sem(values)
    )
    np.testing.assert_allclose((found.low, found.high), wanted)
    assert found.estimate == values.mean()


def test_equal_training_is_like_the_baseline():
    found = verdict(fall(generator=1))
    assert found.kind == "like"
    assert found.words("native") == "trains like native"
    assert found.difference.low < 0 < found.difference.high
    assert found.steps_ratio.low < 1 < found.steps_ratio.high
    assert found.seeds == 5


@pytest.mark.parametrize("times", [1.25, 2.0])
def test_slower_training_needs_so_many_times_the_steps(times):
    found = verdict(fall(1 / times, generator=1, noise=1e-4), fall(noise=1e-4))
    assert found.kind == "slower"
    assert found.steps_ratio.estimate == pytest.approx(times, rel=0.01)
    assert found.steps_ratio.low > 1
    ratio = found.steps_ratio.shown(most=3)
    assert found.words("native") == f"needs {ratio} times the steps"


def test_training_is_slower_although_three_seeds_disagree_how_much_slower():
    """The loss is worse for certain, so a ratio of steps that may be 0.9 is no reason
    to say that training needs more than four times the steps."""
    rows = np.stack([fall(s, seeds=1, noise=0).values[0] for s in (0.5, 1, 2)])
    base = Curve((0, 1, 2), STEPS, rows - rows[:, -20:].mean(1, keepdims=True))
    found = verdict(Curve(base.seeds, STEPS, base.values + 0.1), base)
    assert found.difference.low > found.margin
    assert found.steps_ratio.low < 1 < found.steps_ratio.estimate
    assert found.kind == "slower"


def test_two_seeds_of_many_may_leave_the_steps_open():
    """Of 200 looks each is at 99.975 %: 2,500 standard deviations of two numbers."""
    base, slow = fall(seeds=2, noise=1e-4), fall(1 / 3, seeds=2, noise=1e-4)
    own = Curve(base.seeds, STEPS, np.stack([base.values[0], slow.values[1]]))
    found = verdict(own, base, confidence=1 - 0.05 / 199)
    assert found.kind == "undecided"
    assert found.steps_ratio.high == np.inf


def test_another_floor_is_worse():
    found = verdict(fall(floor=2.0, generator=1))
    assert found.kind == "worse"
    assert found.words("native").startswith("worse by 1.8")


def test_a_loss_that_stops_falling_early_is_worse_and_has_no_ratio_of_steps():
    """It reached its floor in little more than the baseline's steps to that value."""
    own = fall(0.8, noise=0)
    noise = np.random.default_rng(1).normal(size=own.values.shape) * 0.01
    values = np.maximum(own.values, 2.5) + noise
    found = verdict(Curve(own.seeds, STEPS, values))
    assert found.kind == "worse"
    assert found.steps_ratio is None
    assert found.words("native").startswith("worse by 1.2")


def test_a_loss_that_rises_again_is_worse_and_has_no_ratio_of_steps():
    rise = np.maximum(0, STEPS - 100) * 0.012
    own = fall(0.8, noise=1e-3)
    found = verdict(Curve(own.seeds, STEPS, own.values + rise), fall(noise=1e-3))
    assert found.kind == "worse"
    assert found.steps_ratio is None


def test_a_metric_that_grows_is_judged_by_its_growth():
    found = verdict(fall(floor=2.0, sign=-1.0), fall(sign=-1.0))
    assert found.kind == "worse"
    assert found.difference.high < 0
    assert found.words("native").startswith("worse by 1.8")
    assert verdict(fall(sign=-1.0, generator=1), fall(sign=-1.0)).kind == "like"


def test_of_one_seed_there_is_no_verdict():
    found = verdict(fall(floor=2.0, seeds=1))
    assert found.kind == "undecided"
    assert found.words("native") == "undecided: 1 more seed would decide"


def test_what_scatters_is_undecided_until_enough_seeds_ran():
    def scattered(seeds):
        curve = fall(seeds=seeds, generator=1)
        offsets = np.random.default_rng(5).normal(size=(40, 1))[:seeds]
        return Curve(curve.seeds, STEPS, curve.values + offsets * 0.15)

    found = verdict(scattered(4))
    assert found.kind == "undecided"
    assert (
        found.words("native")
        == f"undecided: {found.more_seeds} more seeds would decide"
    )
    assert verdict(scattered(40)).kind == "like"


def test_divergence_names_step_and_seeds():
    curve = fall(generator=1)
    values = curve.values.copy()
    values[1, 60:] = np.nan
    values[3, 80:] = np.inf
    found = verdict(Curve(curve.seeds, STEPS, values))
    assert found.kind == "diverges"
    assert found.diverged == {1: 60, 3: 80}
    assert found.words("native") == "diverges at steps 60 to 80, in 2 of 5 seeds"


def test_a_loss_that_ends_above_its_start_diverges():
    curve = fall(generator=1)
    values = curve.values.copy()
    values[2, 100:] = 9.0
    found = verdict(Curve(curve.seeds, STEPS, values))
    assert found.kind == "diverges"
    (step,) = found.diverged.values()
    assert 100 <= step <= 120  # a mean over 20 steps


def test_a_baseline_that_teaches_nothing_is_said():
    flat = Curve((0, 1, 2), STEPS, np.ones((3, len(STEPS))))
    assert "native does not train" in verdict(fall(seeds=3), flat).words("native")
    lost = Curve((0, 1, 2), STEPS, np.full((3, len(STEPS)), np.nan))
    assert "native diverges itself" in verdict(fall(seeds=3), lost).words("native")


def test_a_baseline_whose_seeds_scatter_is_no_measure():
    base = fall()
    offsets = np.array([[-1.0], [1.0], [0.0], [1.0], [-1.0]])
    wide = Curve(base.seeds, STEPS, base.values + offsets)
    assert "scatter over the seeds" in verdict(fall(), wide).words("native")


def test_the_margin_is_a_share_of_what_is_won():
    base = fall(noise=1e-6)
    alike = Curve(base.seeds, STEPS, base.values - base.values[:, -1:])
    found = verdict(alike, alike, margin=0.1)
    won = alike.values[0, 0] - alike.values[0, -20:].mean()
    assert found.margin == pytest.approx(0.1 * won, rel=1e-3)


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (Interval(2.0, 1.97, 2.03), "2.00 ± 0.03"),
        (Interval(0.2095, 0.2083, 0.2107), "0.2095 ± 0.0012"),
        (Interval(-12.0, -15.0, -9.0), "-12.00 ± 3.00"),
        (Interval(1.5, np.nan, np.nan), "1.5000"),
    ],
)
def test_intervals_are_written_with_the_digits_that_are_known(interval, text):
    assert str(interval) == text


def test_independent_intervals_are_multiplied_in_quadrature():
    found = Interval(2.0, 1.0, 4.0).times(Interval(3.0, 3.0, 3.0))
    assert (found.estimate, found.low, found.high) == pytest.approx((6.0, 3.0, 12.0))
    both = Interval(1.0, 0.5, 2.0).times(Interval(1.0, 0.5, 2.0))
    assert both.high == pytest.approx(2 ** (2**0.5))
