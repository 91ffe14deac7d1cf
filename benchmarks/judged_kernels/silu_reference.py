"""What silu.py computes."""

import numpy as np


def get_inputs():
    """29 million numbers."""
    return [np.random.normal(size=(4096, 7168)).astype(np.float32)]


def forward(x):
    """x / (1 + exp(-x))."""
    return x / (np.float32(1.0) + np.exp(-x))
