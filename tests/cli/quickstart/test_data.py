"""The quickstart's text: deterministic, split, and never mixed."""

from __future__ import annotations

import numpy as np
import pytest

from neuronjax.cli.quickstart import data


@pytest.fixture(scope="module")
def corpus() -> data.Corpus:
    return data.load()


def batches(corpus, seed, steps=3):
    return list(corpus.batches(steps=steps, size=4, length=16, seed=seed))


def test_the_split_is_the_text(corpus):
    total = len(corpus.train) + len(corpus.heldout)
    assert len(corpus.heldout) == pytest.approx(0.1 * total, abs=1)
    assert total > 300_000
    assert corpus.train.dtype == np.int32
    assert 0 <= corpus.train.min() <= corpus.train.max() < data.VOCAB_SIZE
    text = bytes(np.concatenate([corpus.train, corpus.heldout]).astype(np.uint8))
    assert "statement" in text.decode()


def test_loading_twice_gives_the_same(corpus):
    again = data.load()
    np.testing.assert_array_equal(corpus.train, again.train)
    np.testing.assert_array_equal(corpus.heldout, again.heldout)


def test_batches_are_a_function_of_the_seed(corpus):
    first, again, other = batches(corpus, 0), batches(corpus, 0), batches(corpus, 1)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[0], first[1])


def test_more_steps_continue_the_same_batches(corpus):
    np.testing.assert_array_equal(batches(corpus, 0, 5)[:3], batches(corpus, 0, 3))


def test_windows_are_text(corpus):
    train = bytes(corpus.train.astype(np.uint8))
    heldout = bytes(corpus.heldout.astype(np.uint8))
    batch = batches(corpus, 0)[0]
    assert batch.shape == (4, 17)
    assert all(bytes(row.astype(np.uint8)) in train for row in batch)
    windows = corpus.heldout_batches(count=3, size=4, length=16)
    assert windows.shape == (3, 4, 17)
    assert bytes(windows[0, 0].astype(np.uint8)) == heldout[:17]
    assert bytes(windows[-1, -1].astype(np.uint8)) == heldout[-17:]


def test_a_text_of_one_window_has_one_batch():
    corpus = data.Corpus(train=np.arange(5), heldout=np.arange(5))
    (batch,) = corpus.batches(steps=1, size=2, length=4, seed=0)
    np.testing.assert_array_equal(batch, [range(5)] * 2)
