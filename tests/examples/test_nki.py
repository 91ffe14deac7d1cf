"""The kernels of examples/nki: correct at small sizes, and faster where they say so."""

from __future__ import annotations

import pytest

from examples.nki import flash_attention, matmul, rms_norm, selective_scan, softmax


def test_small_kernels(capsys):
    softmax.main(rows=128, columns=64)
    rms_norm.main(rows=128, columns=64)
    printed = capsys.readouterr().out
    assert printed.count("predicted time") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "main",
    [
        softmax.main,
        rms_norm.main,
        matmul.main,
        flash_attention.main,
        selective_scan.main,
    ],
    ids=["softmax", "rms_norm", "matmul", "flash_attention", "selective_scan"],
)
def test_as_they_are(main, capsys):
    main()
    printed = capsys.readouterr().out
    assert "predicted time" in printed
    assert max(map(len, printed.splitlines())) <= 80
