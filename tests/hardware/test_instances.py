"""Instances and networks: counts, published totals, and the names of targets."""

from __future__ import annotations

import math

import pytest

from neuronjax import hardware
from neuronjax.errors import InvalidProgramError

INSTANCES = hardware.INSTANCES.values()


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda instance: instance.name)
def test_topology_holds_all_chips(instance):
    assert math.prod(instance.topology.shape) == instance.chips
    assert instance.chips % instance.hosts == 0


@pytest.mark.parametrize("topology", hardware.TOPOLOGIES.values(), ids=lambda t: t.name)
def test_topology_is_consistent(topology):
    assert len(topology.closed) == len(topology.shape)
    assert {link.axis for link in topology.links} <= set(range(len(topology.shape)))
    assert all(topology.closed) == (topology.kind in ("ring", "torus"))
    if topology.kind != "single":
        assert {link.axis for link in topology.links} == set(range(len(topology.shape)))


@pytest.mark.parametrize(
    ("name", "bytes_per_second"),
    [  # both directions of all links of a chip
        ("trn1-torus-4x4", 384e9),
        ("inf2-ring-12", 192 * 2**30),
        ("inf1-chain-16", 32 * 2**30),
        ("trn2-torus-4x4", 1024e9),
        ("trn2-torus-4x4x4", 1280e9),
        ("trn3-switch-4x16", 1408e9),
    ],
)
def test_links_add_up_to_the_published_rate(name, bytes_per_second):
    links = hardware.TOPOLOGIES[name].links
    total = sum(2 * link.per_chip * link.bytes_per_second for link in links)
    assert total == bytes_per_second


@pytest.mark.parametrize(
    ("name", "lnc", "logical_cores"),
    [
        ("trn1", None, 2),
        ("trn1.32xlarge", None, 32),
        ("inf2.48xlarge", None, 24),
        ("inf1", None, 4),
        ("inf1.xlarge", None, 4),
        ("inf1.2xlarge", None, 4),
        ("inf1.6xlarge", None, 16),
        ("inf1.24xlarge", None, 64),
        ("trn2", None, 4),
        ("trn2", 1, 8),
        ("trn2.48xlarge", None, 64),
        ("trn2.48xlarge", 1, 128),
        ("trn2-ultraserver", None, 256),
        ("trn3-ultraserver-gen1", None, 256),
        ("trn3-ultraserver-gen2", None, 576),
    ],
)
def test_logical_cores(name, lnc, logical_cores):
    assert hardware.resolve_target(name).logical_cores(lnc) == logical_cores


@pytest.mark.parametrize(("name", "lnc"), [("trn1", 2), ("trn2", 0), ("trn2", 4)])
def test_illegal_lnc_names_the_legal_ones(name, lnc):
    with pytest.raises(InvalidProgramError, match="choose one of: 1"):
        hardware.resolve_target(name).logical_cores(lnc)


@pytest.mark.parametrize(
    ("name", "pflops", "terabytes_per_second"),
    [  # trn2-arch.rst and trn3-arch.rst: BF16 or MX peak, HBM bandwidth
        ("inf1.6xlarge", 0.256, 0.2148),  # inf1-arch.rst: 256 TFLOPS, 200 GiB/s
        ("inf1.24xlarge", 1.024, 0.859),
        ("trn2.48xlarge", 10.7, 46.4),
        ("trn2-ultraserver", 42.8, 185.6),
        ("trn3-ultraserver-gen1", 161, 314),
        ("trn3-ultraserver-gen2", 362, 706),
    ],
)
def test_published_totals(name, pflops, terabytes_per_second):
    instance = hardware.INSTANCES[name]
    peaks = instance.chip.published_tflops
    peak = peaks.bf16 if peaks.mx is None else peaks.mx
    hbm = instance.chips * instance.chip.hbm_bytes_per_second / 1e12
    assert instance.chips * peak / 1e3 == pytest.approx(pflops, rel=5e-3)
    assert hbm == pytest.approx(terabytes_per_second, rel=5e-3)


@pytest.mark.parametrize("name", hardware.TARGETS)
def test_every_target_resolves_to_itself(name):
    target = hardware.resolve_target(name)
    assert target.name == name
    assert target.core is target.chip.core
    assert target.topology.shape
    assert (target.instance is None) == (name in hardware.CHIPS)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("gen2", "trn1"),
        ("gen3", "trn2"),
        ("gen4", "trn3"),
        ("u-trn2x64", "trn2-ultraserver"),
    ],
)
def test_aliases(alias, name):
    assert hardware.resolve_target(alias) == hardware.resolve_target(name)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("TRN2", "'trn2'"),
        (" trn2", "'trn2'"),
        ("trn5", "'trn4'"),
        ("trn2.48xl", "'trn2.48xlarge'"),
        ("trainium3", "'trn3'"),
    ],
)
def test_unknown_target_names_the_nearest(name, nearest):
    with pytest.raises(InvalidProgramError) as error:
        hardware.resolve_target(name)
    message = str(error.value)
    assert repr(name) in message
    assert nearest in message.split("legal targets:")[0]
    for legal in hardware.TARGETS:
        assert legal in message


def test_far_off_names_get_the_list_alone():
    with pytest.raises(InvalidProgramError) as error:
        hardware.resolve_target("h100")
    assert "did you mean" not in str(error.value)
    assert "legal targets: trn1" in str(error.value)
