"""The reference of silu.py."""

import numpy as np


def get_inputs():
    """Return 29 million numbers."""
    return [np.random.normal(size=(4096, 7168)).astype(np.float32)]


def forward(x):
    """Return x / (1 + exp(-x))."""
    return x / (np.float32(1.0) + np.exp(-x))
