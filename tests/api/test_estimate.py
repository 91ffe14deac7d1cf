"""`estimate`: the arithmetic on top of profiles, side by side, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from neuronjax.api import instance_costs
from neuronjax.api.estimate import Machine, ServingChipWarning, _placed, estimate
from neuronjax.api.profile import profile
from neuronjax.api.searched_program import fastest_mixture
from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import resolve_target
from neuronjax.ir.collectives.placement import Placement
from neuronjax.report.quantities import seconds as in_words
from neuronjax.timing.collectives import collective_time, queued_launch_seconds

W = jax.ShapeDtypeStruct((1024, 2048), jnp.float32)
X = jax.ShapeDtypeStruct((512, 1024), jnp.float32)


def train_step(w, x):
    def loss(w):
        return jnp.square(jnp.tanh(x @ w)).mean()

    value, gradient = jax.value_and_grad(loss)(w)
    return w - 0.1 * gradient, value


def forward(w, x):
    return jnp.tanh(x @ w)


@pytest.fixture(scope="module")
def found():
    """Two instances, two policies and a GPU."""
    return estimate(
        train_step,
        instance=["trn1.32xlarge", "trn2.48xlarge"],
        policy=["bf16", "fp32"],
        tokens=1e9,
        tokens_per_step=512,
        price_per_hour={"trn2.48xlarge": 40.0},
        watts={"trn1.32xlarge": 5_000.0, "trn2.48xlarge": 10_000.0},
        utilization=0.9,
        against=Machine(
            name="GPU", step_seconds=0.01, price_per_hour=50.0, tokens_per_step=2**15
        ),
    )(W, X)


def test_seconds_are_those_of_the_profile_and_the_collective(found):
    target = resolve_target("trn1.32xlarge")
    time = found.costs[0].time
    profiled = profile(train_step, target="trn1.32xlarge", policy="bf16")(W, X)
    assert time.compute_seconds == profiled.total_seconds
    ranks = [list(range(32))]
    reduce = collective_time("all_reduce", 4 * 1024 * 2048, ranks, target)
    assert time.all_reduce_seconds == reduce.seconds
    busy = time.compute_seconds + time.exposed_seconds
    assert time.launch_seconds == queued_launch_seconds(target, 32, busy)
    assert 0 <= time.exposed_seconds < reduce.seconds
    whole = time.compute_seconds + time.exposed_seconds + time.launch_seconds
    assert found.step_seconds == time.step_seconds == whole


def test_side_by_side(found):
    rows = [(c.machine, c.policy, c.devices, c.copies) for c in found.costs]
    assert rows == [
        ("trn1.32xlarge", "bf16", 32, 32),
        ("trn1.32xlarge", "fp32", 32, 32),
        ("trn2.48xlarge", "bf16", 64, 64),
        ("trn2.48xlarge", "fp32", 64, 64),
        ("GPU", "", 0, 64),
    ]
    assert not found.refused
    for cost in found.costs:
        assert cost.tokens == pytest.approx(1e9, rel=1e-3)
        assert cost.dollars == pytest.approx(
            cost.price.usd_per_hour * cost.steps * cost.step_seconds / 3600 / 0.9
        )
    slow, fast = found.costs[1].time, found.costs[0].time
    assert slow.compute_seconds > fast.compute_seconds
    assert found.costs[2].energy_kwh == pytest.approx(10 * found.costs[2].hours)
    assert found.costs[4].energy_kwh is None
    assert found.cheapest.dollars == min(cost.dollars for cost in found.costs)
    first = found.costs[0]
    assert (found.dollars, found.hours) == (first.dollars, first.hours)
    assert found.tokens_per_second == first.tokens_per_second
    assert found.dollars_per_million_tokens == first.dollars_per_million_tokens
    assert found.energy_kwh == first.energy_kwh


def test_tables_fit_80_columns(found):
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for part in ("train_step, 90% utilized, 1.00 G tokens", "× first", "fp32", "kWh"):
        assert part in text
    assert "trn1.32xlarge, 21.50 USD/h (AWS, on demand, us-east-1, 2022-10)" in text
    assert "trn2.48xlarge, 40.00 USD/h (given)" in text
    assert "trn1.32xlarge" in found._repr_html_()
    assert "5 rows" in repr(found)


def test_records_and_json(found):
    data = json.loads(found.to_json())
    assert data["rows"] == found.records
    row = found.records[0]
    assert row["machine"] == "trn1.32xlarge"
    assert row["compute_seconds"] == found.costs[0].time.compute_seconds
    assert (row["price_terms"], row["fits"]) == ("on demand", True)


# -- copies ----------------------------------------------------------------------------


def test_one_device_exchanges_nothing():
    found = estimate(train_step, instance="trn1.2xlarge", devices=1)(W, X)
    (cost,) = found.costs
    assert (cost.copies, cost.time.all_reduce_seconds) == (1, 0)
    assert cost.dollars is None
    assert found.notes == ()


def test_a_program_without_gradients_exchanges_nothing():
    found = estimate(forward, instance="trn1.2xlarge", steps=10)(W, X)
    assert found.costs[0].time.all_reduce_seconds == 0
    assert found.notes == (
        "no gradients are computed, so data-parallel copies exchange nothing",
    )


def test_gradient_bytes_and_overlap():
    def priced(**options):
        step = estimate(train_step, instance="trn1.2xlarge", **options)
        return step(W, X).costs[0].time

    # A whole GiB is more than the backward pass hides.
    large = priced(gradient_bytes=2**30)
    bare = priced(gradient_bytes=2**30, overlap=0.0)
    assert bare.exposed_seconds == bare.all_reduce_seconds == large.all_reduce_seconds
    assert large.exposed_seconds < bare.exposed_seconds
    hidden = large.all_reduce_seconds - large.exposed_seconds
    assert 0 < hidden < large.compute_seconds
    assert priced(gradient_bytes=0).all_reduce_seconds == 0


def test_a_program_of_several_devices_is_copied_whole():
    mesh = nj.make_mesh((4,), ("tp",))
    local = jax.shard_map(
        lambda w, x: jax.lax.psum(x @ w, "tp"),
        mesh=mesh,
        in_specs=(P("tp"), P(None, "tp")),
        out_specs=P(),
    )
    (cost,) = estimate(local, instance="trn2.48xlarge")(W, X).costs
    assert (cost.copies, cost.devices) == (16, 64)
    (cost,) = estimate(local, instance="trn2.48xlarge", devices=8)(W, X).costs
    assert (cost.copies, cost.devices) == (2, 8)
    with pytest.raises(
        InvalidProgramError, match="6 devices for a program that needs 4"
    ):
        estimate(local, instance="trn2.48xlarge", devices=6)(W, X)


def test_copies_of_sharded_parameters_add_up_their_shards():
    """Device 0 of a copy exchanges with device 0 of the others, a quarter of W."""
    mesh = nj.make_mesh((4,), ("tp",))

    def local(w, x):
        def loss(w):
            return jnp.square(jax.lax.psum(x @ w, "tp")).mean()

        return w - jax.grad(loss)(w)

    step = jax.shard_map(
        local, mesh=mesh, in_specs=(P("tp"), P(None, "tp")), out_specs=P("tp")
    )
    target = resolve_target("trn2.48xlarge")
    (cost,) = estimate(step, instance="trn2.48xlarge")(W, X).costs
    groups = [list(range(first, 64, 4)) for first in range(4)]
    reduce = collective_time("all_reduce", 1024 * 2048, groups, target)
    assert cost.time.all_reduce_seconds == reduce.seconds
    busy = cost.time.compute_seconds + cost.time.exposed_seconds
    assert cost.time.launch_seconds == queued_launch_seconds(target, 64, busy)


def test_several_instances_share_the_gradients():
    """Over 16 nodes the ranks are not listed one by one."""
    names = ["trn1.32xlarge", "trn1.32xlarge:2", "trn1.32xlarge:16"]
    found = estimate(train_step, instance=names, tokens=1e9, tokens_per_step=512)(W, X)
    times = [cost.time.all_reduce_seconds for cost in found.costs]
    assert [cost.copies for cost in found.costs] == [32, 64, 512]
    assert times == sorted(times)
    assert found.costs[2].price.usd_per_hour == pytest.approx(16 * 21.5)


# -- notes, warnings, refusals ---------------------------------------------------------


def test_fewer_bits_that_take_longer_are_a_note():
    found = estimate(train_step, instance="trn2.48xlarge", policy=["bf16", "fp8"])(W, X)
    slower = [note for note in found.notes if " with fp8 and " in note]
    bf16, fp8 = (profiled.total_seconds for profiled in found.profiles)
    assert len(slower) == (fp8 > bf16) == 1


def test_no_mixture_is_advised_where_a_launch_hides_what_it_saves(monkeypatch):
    """64 ranks wait for each other longer than the program takes, and four do not. On
    both machines at once, the program is the same."""
    monkeypatch.setattr(instance_costs, "fastest_mixture", lambda *_: (None, 1.0))
    none = "using both, each for some of the modules, is no faster"
    waits = "with bf16, the chips already wait for launches"
    hidden = f"{waits}, so a mixture of both would save nothing"
    x = jax.ShapeDtypeStruct((16384, 1024), jnp.float32)
    large, small = "trn2.48xlarge", "trn2.3xlarge"
    told = {}
    for names in ([large], [small], [large, small]):
        found = estimate(train_step, instance=names, policy=["bf16", "fp8"])(W, x)
        bf16 = [cost for cost in found.costs if cost.policy == "bf16"]
        waits = [bool(cost.time.launch_seconds) for cost in bf16]
        (note,) = (note for note in found.notes if " with fp8 and " in note)
        told[*waits] = note.rpartition("; ")[2]
    assert told == {(True,): hidden, (False,): none, (True, False): none}


def layers(weights, x):
    """The wide product is faster in FP8, the others are not."""

    def loss_of(weights):
        hidden = jnp.tanh(x @ weights["in"])
        return jnp.mean((hidden @ weights["out"]) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), loss


def test_rules_that_are_faster_than_either_policy_are_printed_and_true():
    shapes = {"in": (2048, 8192), "out": (8192, 512)}
    weights = {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in shapes.items()}
    x = jax.ShapeDtypeStruct((4096, 2048), jnp.float32)
    policies = {"policy": ["bf16", "fp8"], "devices": 1}
    bill = estimate(layers, instance="trn2.48xlarge", **policies)(weights, x)
    (note,) = (note for note in bill.notes if " with fp8 and " in note)
    said, _, code = note.partition(", with policy=")
    mixed = eval(code, {"nj": nj})
    assert len(mixed.rules) == 1
    again = nj.profile(layers, target="trn2", policy=mixed)(weights, x)
    told = in_words(again.total_seconds)
    assert said.endswith(f"a mixture is predicted to take {told}")
    bf16 = next(p for p in bill.profiles if p.policy.name == "bf16")
    assert again.total_seconds < bf16.total_seconds


def test_a_mixture_is_priced_for_the_given_iterations():
    def settled(weights, x):
        x = jax.lax.while_loop(lambda x: x.max() > 1, lambda x: x / 2, x)
        return layers(weights, x)

    shapes = {"in": (2048, 8192), "out": (8192, 512)}
    weights = {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in shapes.items()}
    x = jax.ShapeDtypeStruct((4096, 2048), jnp.float32)
    (loop,) = profile(settled, target="trn2")(weights, x).timeline.loops
    trips = {loop.source: 7}
    options = {"policy": ["bf16", "fp8"], "devices": 1, "trips": trips}
    notes = estimate(settled, instance="trn2.48xlarge", **options)(weights, x).notes
    (note,) = (note for note in notes if " with fp8 and " in note)
    said, _, code = note.partition(", with policy=")
    mixed = eval(code, {"nj": nj})
    again = profile(settled, target="trn2", policy=mixed, trips=trips)(weights, x)
    assert said.endswith(f"is predicted to take {in_words(again.total_seconds)}")


@pytest.mark.parametrize(
    "change", [{"scaling": "delayed"}, {"rules": nj.Rule(op="dot", rounding="rne")}]
)
def test_policies_that_rules_cannot_mix_are_not_mixed(change):
    fp8 = dataclasses.replace(nj.Policy.preset("fp8"), **change, name="slow")
    options = {"policy": ["bf16", fp8], "devices": 1}
    x = jax.ShapeDtypeStruct((4096, 1024), jnp.float32)
    found = estimate(train_step, instance="trn2.48xlarge", **options)(W, x)
    bf16, slow = (profiled.total_seconds for profiled in found.profiles)
    notes = [note for note in found.notes if " with slow and " in note]
    assert len(notes) == (slow > bf16)
    assert all("; a mixture of both was not tried (" in note for note in notes)


def test_layers_in_a_list_are_mixed_alike():
    """Two modules of twelve layers are two groups; 24 would be too many to try."""
    shapes = {"up": (256, 512), "down": (512, 256)}
    layer = {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in shapes.items()}

    def loss(layers, x):
        for each in layers:
            x = jnp.tanh(x @ each["up"]) @ each["down"]
        return x

    policies = [nj.Policy.preset(name) for name in ("fp8", "bf16")]
    x = jax.ShapeDtypeStruct((64, 256), jnp.float32)
    fp8, bf16 = (nj.profile(loss, policy=p)([layer] * 12, x) for p in policies)
    _, seconds = fastest_mixture(fp8.lowered, policies, {})
    assert 0 < seconds <= min(fp8.total_seconds, bf16.total_seconds)


def test_the_policy_says_how_many_cores_a_machine_has():
    one, two = (nj.Policy(lnc=lnc, name=f"LNC {lnc}") for lnc in (1, 2))
    found = estimate(train_step, instance="trn2.48xlarge", policy=[one, two])(W, X)
    assert [cost.devices for cost in found.costs] == [128, 64]
    forced = estimate(train_step, instance="trn2.48xlarge", policy=one, lnc=2)(W, X)
    assert forced.costs[0].devices == 64
    step = nj.jit(train_step, target="trn2.48xlarge", policy=one)
    assert estimate(step, devices=100)(W, X).costs[0].devices == 100


def test_the_placement_of_copies_counts():
    instance, size = "trn2.48xlarge", 4 * 1024 * 2048
    target = resolve_target(instance)
    far = tuple(range(0, 64, 4))  # a core of every chip
    policy = nj.Policy(placement=far)
    found = estimate(train_step, instance=instance, policy=policy, devices=16)(W, X)
    placed = Placement.of(target, cores=far)
    ranks = [list(range(16))]
    expected = collective_time("all_reduce", size, ranks, target, placement=placed)
    near = collective_time("all_reduce", size, ranks, target)
    assert found.costs[0].time.all_reduce_seconds == expected.seconds != near.seconds


def test_a_placement_of_fewer_devices_is_noted():
    policy = nj.Policy(placement=(5, 3))
    found = estimate(train_step, instance="trn2.48xlarge", policy=policy)(W, X)
    assert any("the placement is for 2 of 64 devices" in note for note in found.notes)


def test_a_copy_in_another_order_is_so_everywhere():
    assert _placed((), 3, 2) == ()
    assert _placed((1, 0), 3, 2) == [1, 0, 3, 2, 5, 4]
    assert _placed((4, 0), 3, 2) is None
    assert _placed(tuple(range(6, 0, -1)), 3, 2) == (6, 5, 4, 3, 2, 1)


def test_a_train_step_on_a_serving_chip_is_warned_about():
    with pytest.warns(ServingChipWarning, match=r"inf2\.xlarge is sold for serving"):
        found = estimate(train_step, instance="inf2.xlarge", steps=1)(W, X)
    assert "inf2.xlarge is sold for serving" in found.notes[0]
    assert "note: inf2.xlarge" in str(found)


def test_other_programs_are_served_without_a_warning(recwarn):
    estimate(forward, instance="inf2.xlarge")(W, X)
    assert not [w for w in recwarn if issubclass(w.category, ServingChipWarning)]


def test_equal_steps_are_not_equal_data():
    names = ["trn1.2xlarge", "trn1.32xlarge"]
    found = estimate(train_step, instance=names, steps=10)(W, X)
    assert any("up to 16 times as much data as another" in note for note in found.notes)


def test_steps_by_policy():
    steps = {"bf16": 100, "fp32": 90}
    found = estimate(
        train_step, instance="trn1.2xlarge", policy=["bf16", "fp32"], steps=steps
    )(W, X)
    assert [cost.steps for cost in found.costs] == [100, 90]
    with pytest.raises(
        InvalidProgramError, match="steps gives values by name, but none for 'fp8'"
    ):
        estimate(train_step, policy="fp8", steps=steps)


def test_what_a_chip_refuses_is_named_beside_the_others():
    found = estimate(forward, instance=["trn1.2xlarge", "trn2.3xlarge"], policy="mxfp8")
    with pytest.raises(InvalidProgramError, match="no machine runs this program"):
        found(W, X)
    names = ["trn1.2xlarge", "trn3"]
    priced = estimate(
        forward, instance=names, policy="mxfp8", price_per_hour={"trn3": 5.0}
    )(W, X)
    assert [cost.machine for cost in priced.costs] == ["trn3"]
    assert list(priced.refused) == ["trn1.2xlarge, mxfp8"]
    assert "refused: trn1.2xlarge, mxfp8" in str(priced)


def test_what_does_not_fit_says_so():
    big = jax.ShapeDtypeStruct((65_536, 65_536), jnp.float32)
    rows = jax.ShapeDtypeStruct((8, 65_536), jnp.float32)
    found = estimate(forward, instance="trn1.2xlarge")(big, rows)
    assert not found.costs[0].fits
    assert any("of HBM; a device of trn1 has" in note for note in found.notes)
    with pytest.raises(InvalidProgramError, match="GiB of HBM"):
        found.check_memory()


def test_results_take_the_place_of_donated_arguments():
    """Parameters that a step gives away and back are not there twice."""
    big = jax.ShapeDtypeStruct((32_768, 65_536), jnp.float32)  # 8 of 16 GiB
    small = jax.ShapeDtypeStruct((8, 32_768), jnp.float32)

    def step(w, x):
        return w * 0.5, x.sum()

    donating = nj.jit(step, target="trn1.2xlarge", donate_argnums=0)
    found = estimate(donating, devices=1)(big, small)
    assert 8 * 2**30 <= found.costs[0].hbm_bytes < 9 * 2**30
    found.check_memory()
    kept = estimate(step, instance="trn1.2xlarge", devices=1)(big, small)
    assert 16 * 2**30 <= kept.costs[0].hbm_bytes
    assert any("8.00 GiB if results reused the memory" in note for note in kept.notes)


@pytest.mark.parametrize("donated", [(), (0,)])
def test_profile_and_estimate_agree_on_hbm(donated):
    step = nj.jit(train_step, target="trn2.48xlarge", donate_argnums=donated)
    profiled = profile(step)(W, X)
    found = estimate(step)(W, X)
    assert found.costs[0].hbm_bytes == profiled.memory.hbm.bytes
    assert found.costs[0].policy == "fp32"
    line = "trn2.48xlarge, LNC 2, policy fp32 (FP32 in four passes), SDK 2.32"
    assert line in str(found)
    assert line in str(profiled)


def test_results_of_other_types_are_there_besides():
    """What is given back must not hide what is new."""
    w = jax.ShapeDtypeStruct((8192, 8192), jnp.float32)
    step = nj.jit(
        lambda w: (w * 0.5, w.astype(jnp.bfloat16)),
        target="trn1.2xlarge",
        donate_argnums=0,
    )
    found = estimate(step, devices=1)(w)
    assert found.costs[0].hbm_bytes == (4 + 2) * 8192 * 8192


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"instance": "trn3-ultraserver-gen1"}, "no list price of trn3"),
        ({"instance": []}, "names no instance"),
        ({"instance": "p5.48xlarge"}, "unknown target"),
        (
            {"instance": ["trn1.2xlarge", "trn1.32xlarge"], "price_per_hour": 3.0},
            "prices by name",
        ),
        ({"overlap": 2.0}, "overlap of 2"),
        ({"devices": 65}, "has 64 logical"),
        ({"steps": 1, "tokens": 5.0, "tokens_per_step": 1}, "not both"),
        ({"against": {"name": "GPU"}}, "step_seconds"),
        (
            {"against": {"name": "GPU", "step_seconds": 0, "price_per_hour": 1}},
            "machine 'GPU'",
        ),
        (
            {
                "against": {
                    "name": "GPU",
                    "step_seconds": 1,
                    "price_per_hour": 1,
                    "tokens_per_step": 8,
                }
            },
            "but the estimate has none",
        ),
    ],
)
def test_questions_without_an_answer(options, message):
    with pytest.raises(InvalidProgramError, match=message):
        estimate(train_step, **options)


# -- what is priced --------------------------------------------------------------------


def test_an_emulated_function_keeps_its_machine_and_policy():
    step = nj.jit(train_step, target="trn1.2xlarge", policy="fp32")
    (cost,) = estimate(step, devices=1)(W, X).costs
    assert (cost.machine, cost.policy) == ("trn1.2xlarge", "fp32")


def test_a_lowered_program_is_that_of_every_machine_with_its_chip():
    text = nj.jit(forward).lower(W, X).as_text().encode()
    lowered = nj.load(text, target="trn1", policy="bf16")
    (cost,) = estimate(lowered, instance="trn1.2xlarge")().costs
    assert (cost.machine, cost.policy) == ("trn1.2xlarge", "bf16")
    (other,) = estimate(lowered, instance="trn2.48xlarge")().costs
    (same,) = estimate(forward, instance="trn2.48xlarge", policy="bf16")(W, X).costs
    assert (other.machine, other.step_seconds) == (same.machine, same.step_seconds)


@pytest.mark.parametrize(
    ("chip", "instance"), [("trn1", "trn1.32xlarge"), ("inf2", "inf2.48xlarge")]
)
def test_an_instance_with_the_chip_that_a_function_is_made_for(chip, instance):
    step = nj.jit(forward, target=chip, policy="bf16")
    (cost,) = estimate(step)(W, X).costs
    assert (cost.machine, cost.policy) == (instance, "bf16")


def test_a_saved_program_is_loaded_for_every_machine(tmp_path: Path):
    path = tmp_path / "forward.mlir"
    path.write_text(nj.jit(forward).lower(W, X).as_text())
    found = estimate(path, instance=["trn1.2xlarge", "trn2.3xlarge"], policy="bf16")()
    assert [cost.machine for cost in found.costs] == ["trn1.2xlarge", "trn2.3xlarge"]
    assert "forward.mlir" in str(found).replace("\n", "")


def test_notes_and_intervals_name_what_they_are_about():
    """Rows with different notes are told apart; a note of all rows has no name."""
    found = estimate(layers, instance="trn2.48xlarge", policy=["bf16", "fp8"])
    square = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    bill = found({"in": square, "out": square}, square)
    (casting,) = (note for note in bill.notes if "casting FP32" in note)
    (preparing,) = (note for note in bill.notes if "preparing FP8" in note)
    assert casting.startswith("bf16: ")
    assert preparing.startswith("fp8: ")
    lines = bill.remarks()
    assert sum(line.startswith(("bf16: ", "fp8: ")) for line in lines) == 2
