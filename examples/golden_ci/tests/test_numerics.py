"""What the model computes on Trainium: bits that change only when someone says so."""

import model
import numpy as np
import pytest


@pytest.fixture
def batch():
    """Parameters, features and labels, made without JAX's generators."""
    draw = np.random.default_rng(0)
    shapes = {"up": (16, 32), "bias": (32,), "down": (32, 4)}
    parameters = {
        name: (draw.integers(-64, 64, shape) / 256).astype(np.float32)
        for name, shape in shapes.items()
    }
    x = (draw.integers(-256, 256, (8, 16)) / 128).astype(np.float32)
    return parameters, x, draw.integers(0, 4, 8).astype(np.int32)


@pytest.mark.neuron_target("trn2")
@pytest.mark.neuron_policy("bf16", "fp8")
def test_train_step(golden, batch):
    """Every bit of the new parameters and of the loss."""
    golden("train_step", model.train_step)(*batch)


@pytest.mark.neuron_target("trn3")
@pytest.mark.neuron_policy("mxfp8")
def test_inference(golden, batch):
    """The scores, with microscaled operands."""
    parameters, x, _ = batch
    golden("logits", model.logits)(parameters, x)


@pytest.mark.neuron_policy("bf16")
def test_fp32_is_near(neuron_jit, batch):
    """BF16 operands move the loss by less than a percent."""
    emulated = float(neuron_jit(model.loss)(*batch))
    assert emulated == pytest.approx(float(model.loss(*batch)), rel=1e-2)
