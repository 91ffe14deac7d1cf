"""The reference of silu.py for one row of tiles."""

import numpy as np


def get_inputs():
    """Return two tiles."""
    return [np.random.normal(size=(128, 7168)).astype(np.float32)]


def forward(x):
    """Return x / (1 + exp(-x))."""
    return x / (np.float32(1.0) + np.exp(-x))
