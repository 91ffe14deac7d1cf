"""Patches of convolutions: what of them is ever made."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import neuronjax as nj
from neuronjax.hardware import resolve_target
from neuronjax.ir.instruction_set import Im2col
from neuronjax.timing.memory import plan_memory
from neuronjax.timing.patches import copied_bytes, held_bytes, run_bytes
from neuronjax.timing.work import Core

BF16 = jnp.bfloat16


def struct(*shape: int):
    return jax.ShapeDtypeStruct(shape, BF16)


def convolve(x, w, strides=(1, 1), padding="SAME"):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=numbers)


def program_of(function, *arguments, target="trn2"):
    low = nj.jit(function, target=target, policy="bf16").lower(*arguments)
    return low.captured.instructions


def plan_of(function, *arguments, target="trn2"):
    program = program_of(function, *arguments, target=target)
    return plan_memory(program, Core.of(resolve_target(target), 1))


def patches(function, *arguments):
    main = program_of(function, *arguments).main
    (found,) = [i for i in main.instructions if isinstance(i, Im2col)]
    return found


@pytest.mark.parametrize("kernel", [1, 3, 7])
def test_an_image_that_does_not_fit_is_read_once(kernel):
    """Its patches are 0.2, 2 and 10 GB."""
    image, weights = struct(256, 56, 56, 128), struct(kernel, kernel, 128, 128)
    plan = plan_of(convolve, image, weights)
    size = 2 * 256 * 56 * 56 * 128
    assert plan.hbm_read_bytes == size + 2 * kernel**2 * 128 * 128
    assert plan.hbm_write_bytes == size
    assert plan.hbm.categories["workspace"] == 0


def test_channels_are_as_many_as_a_row_tile_of_the_chip():
    """32 rows from NeuronCore-v3 on, 64 before."""
    arguments = struct(4, 28, 28, 32), struct(3, 3, 32, 64)
    newer, older = (
        plan_of(convolve, *arguments, target=target) for target in ("trn2", "trn1")
    )
    forms = [[u.region.form for u in p.main.units] for p in (newer, older)]
    assert "other" not in forms[0]
    assert "other" in forms[1]


def test_few_channels_share_the_partitions_with_one_axis_of_the_kernel():
    i = patches(
        lambda x, w: convolve(x, w, (2, 2)), struct(8, 224, 224, 3), struct(7, 7, 3, 64)
    )
    image = 2 * 8 * 224 * 224 * 3
    assert copied_bytes(i) == 7 * image
    assert held_bytes(i) == image
    assert run_bytes(i) == 2 * 224 * 3


def test_the_gradient_of_a_kernel_shares_them_with_one_axis_of_the_result():
    def gradient(x, dy):
        return jax.linear_transpose(lambda w: convolve(x, w), struct(3, 3, 64, 64))(dy)

    image = struct(8, 56, 56, 64)
    i = patches(gradient, image, image)
    size = 2 * 8 * 56 * 56 * 64
    assert (copied_bytes(i), held_bytes(i)) == (3 * size, size)


def test_patches_that_are_smaller_than_the_image_are_all_that_is_copied():
    i = patches(
        lambda x, w: convolve(x, w, (8, 8), "VALID"),
        struct(8, 64, 64, 3),
        struct(2, 2, 3, 64),
    )
    assert copied_bytes(i) == held_bytes(i) == 2 * 8 * 8 * 8 * 12


def test_kernels_of_one_position_keep_the_rows():
    """So that the steps around them go with them, tile by tile."""

    def block(x, up, down):
        return convolve(jax.nn.relu(convolve(x, up)), down)

    plan = plan_of(
        block, struct(64, 56, 56, 128), struct(1, 1, 128, 128), struct(1, 1, 128, 128)
    )
    assert plan.spill_save_bytes == 0
