"""The vendor's tests run unmodified; the corpus here has three tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import vendor_tests

TESTS = """
import unittest

import neuronxcc.nki as nki
import neuronxcc.nki.language as nl
import numpy as np


@nki.jit(mode="simulation")
def test_kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x))
    return out


class TestOf(unittest.TestCase):
    def test_activation(self):
        x = np.ones((4, 8), np.float32)
        self.assertTrue(np.allclose(test_kernel(x), x + {error}))

    def test_another(self):
        self.assertEqual(1, {one})
"""


@pytest.fixture
def corpus(tmp_path: Path):
    folder = tmp_path / "aws-neuron-sdk" / "nki" / "test"
    folder.mkdir(parents=True)

    def written(**parts: int) -> str:
        text = TESTS
        for name, value in parts.items():
            text = text.replace("{" + name + "}", str(value))
        (folder / "test_nki_isa_activation.py").write_text(text)
        return str(tmp_path)

    return written


def test_what_is_expected_to_fail_fails_alone(corpus, capsys):
    assert vendor_tests.main([corpus(error=1, one=1)]) == 0
    said = capsys.readouterr().out
    assert "2 tests: 1 pass, 1 fail" in said
    assert "casts to bfloat16" in said


@pytest.mark.slow
def test_another_failure_and_an_unexpected_pass_are_told(corpus, capsys):
    assert vendor_tests.main([corpus(error=0, one=2)]) == 1
    said = capsys.readouterr().out
    assert "test_another: NOT EXPECTED: AssertionError: 1 != 2" in said
    assert "test_activation passes, and is listed" in said


def test_without_the_repositories_it_says_what_to_fetch(tmp_path, capsys):
    assert vendor_tests.main([str(tmp_path)]) == 2
    assert "git clone https://github.com/aws-neuron/" in capsys.readouterr().out
