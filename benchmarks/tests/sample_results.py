"""One small results file of every benchmark, as the page reads them."""

from __future__ import annotations

from typing import Any

from benchmarks import results_file

ABOUT = {
    "started": "2026-01-02T03:04:05+00:00",
    "versions": {"python": "3.11.0", "jax": "0.0", "commit": "abc"},
    "machine": {"processor": "P", "threads": 2, "load_at_start": 0.5},
}


def timed(median: float) -> dict[str, Any]:
    return {"median": median, "quartiles": [median * 0.9, median * 1.1], "runs": 3}


def pair(task: str, peer: str, ratio: float, numerics: dict[str, Any], **more: Any):
    return {
        "task": task,
        "peer": peer,
        "status": "measured",
        "sizes": {"elements": 1024},
        "neuronjax_seconds": timed(1e-3),
        "peer_seconds": timed(1e-3 * ratio),
        "ratio": timed(ratio),
        "numerics": numerics,
        "caveat": "",
        **more,
    }


def cast(peer: str, ratio: float, differ: int, overflow: str) -> dict[str, Any]:
    found = {"compared": 1000, "differ": differ, "differ_subnormal_inputs": 0}
    special = {"overflow": overflow, "Inf": "inf", "NaN": "nan"}
    ours = {**special, "overflow": "nan"}
    numerics = {**found, "special": special, "ours_special": ours}
    return pair("cast to float8_e4m3fn", peer, ratio, numerics)


BLOCKS = {
    "compared": 64,
    "differ": 0,
    "scale_rule": "rceil",
    "block_with_inf": "inf, 0",
    "ours_block_with_inf": "nan",
}
SUMS = {"compared": 16, "differ": 8, "relative_l2": 2e-7, "ours_relative_l2": 1e-7}
PEERS = {
    "entries": [
        cast("jnp.astype", 0.5, 0, "nan"),
        cast("torch", 4.0, 3, "448"),
        pair("quantize and dequantize mxfp8_e4m3", "qwix", 1.0, BLOCKS),
        pair("matmul of BF16 values, FP32 sums", "NumPy", 2.0, SUMS),
        {"task": "prune 2:4", "peer": "qwix", "status": "skipped", "why": "absent"},
        {
            "task": "order of addition",
            "peer": "neuronjax",
            "status": "revealed",
            "sizes": {"k": 256},
            "order": "(0..127) + (128..255)",
        },
    ],
    "peer_versions": {"torch": "2.0", "qwix": None},
    "questions": ["PSUM"],
    "abilities": {"neuronjax": ["yes"], "qwix": ["no"]},
    "not_run": {"nki.simulate": "not on PyPI."},
}
NATIVE = {
    "entries": [
        {
            "name": "gpt_step/bf16",
            "status": "measured",
            "target": 1.6,
            "reached": False,
            "value": 1.7,
            "unit": "x",
            "samples": timed(1.7),
            "native_seconds": timed(0.2),
            "emulated_seconds": timed(0.34),
        },
        {"name": "sum/last_axis", "status": "skipped", "target": 3, "reached": None},
    ]
}


def point(sweep: str, value: int, ratio: float) -> dict[str, Any]:
    return {
        "sweep": sweep,
        "value": value,
        "ratio": ratio,
        "native_seconds": 0.1,
        "emulated_seconds": 0.1 * ratio,
        "native_compile_seconds": 1.0,
        "emulated_compile_seconds": 5.0,
        "native_planned_bytes": 2**20,
        "emulated_planned_bytes": 2**21,
    }


SCALING = {
    "entries": [
        *(point("parameters", n, 1.5) for n in (1_000_000, 10_000_000)),
        *(point("tokens", n, 1.4) for n in (64, 128)),
        *(point("devices", n, 1.1) for n in (1, 4)),
        point("ops", 100, 1.3),
        {"sweep": "ops", "value": 10_000, "not_compiled": "it would take 900 s"},
    ],
    "cut": ["tokens"],
}


def row(name: str, group: str, predicted: float, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "group": group,
        "published_seconds": 1e-3,
        "predicted_seconds": predicted,
        "error": predicted / 1e-3 - 1,
        "counts": True,
        "held_out": False,
        **more,
    }


ROWS = [
    row("DMA", "instructions and DMA", 1.1e-3),
    row("attention", "attention", 2e-3, held_out=True),
    row("T1 all_reduce", "collectives T1", 0.9e-3),
    row("given", "attention", 9e-3, counts=False),
]
REGRESSION = {
    "entries": [
        {"name": "mlp:bf16:trn2", "bits": "0" * 64, "verdict": "equal"},
        {"name": "mlp:fp8:trn2", "bits": "1" * 64, "verdict": "DIFFERS"},
    ]
}


KERNELS = {
    "entries": [
        {
            "op": "silu",
            "kernel": f"runs/silu_v{n}.py",
            "chip": "trn2",
            "measured_seconds": 6e-4 + n * 1e-5,
            "predicted_seconds": 5e-4 + abs(n - 1) * 1e-5,
            "error": -0.1,
            "active": {"scalar": 0.34},
            "busy_seconds": {"scalar": 1.9e-4},
            "read_bytes": [117e6, 117e6],
            "write_bytes": [None, 117e6],
        }
        for n in range(6)
    ]
}


LEFT_OUT = {
    "entries": [
        {
            "op": "silu",
            "kernels": 10,
            "median_error": 0.03,
            "left_out_error": 0.05,
            "chosen": {"streaming_bytes_per_second": 24e9, "THROTTLE_SINKING": 0.25},
        }
    ]
}


NUMERICS = {
    "transcendentals": "exact",
    "entries": [
        {
            "op": "bmm",
            "kernel": "runs/bmm_v1.py",
            "chip": "trn2",
            "about": "FP32 matmul, K = 64",
            "device": 1.8e-7,
            "here": 2.09e-7,
            "ratio": 1.161,
            "is_close": False,
            "numpy": 1.44e-7,
            "device_alone": 1.08e-7,
            "here_alone": 1.52e-7,
        },
        {
            "op": "gqa_full",
            "kernel": "runs/gqa_full_v2.py",
            "chip": "trn2",
            "about": "exp",
            "device": 2.9e-6,
            "here": 2.8e-6,
            "ratio": 0.966,
            "is_close": True,
            "numpy": 1e-8,
            "device_alone": None,
            "here_alone": 2.8e-6,
        },
    ],
    "not_done": {"gqa_full_v3": "not asked for"},
}
MODELS = {
    "device": {"K = 64": 1.8e-7},
    "blocks": [320, 448],
    "entries": [
        {
            "name": "fp32_4pass",
            "rows": {
                "K = 64": {"exact": 1.5e-7, "by_block": {"320": 2.0e-7, "448": 2.1e-7}}
            },
            "verdict": "excluded by K = 64",
        }
    ],
}
JUDGED = {
    "entries": [
        {
            "op": "silu",
            "kernel": "AccelOpt/NKIBench/kernels/silu_M1_N1_0.py",
            "accepted": True,
            "correct": True,
            "why": "",
            "seconds": 9.0,
            "largest_bytes": 1 << 30,
        },
        {
            "op": "silu",
            "kernel": "kda-for-trainium/workspaces/silu/runs/silu_v1.py",
            "accepted": False,
            "correct": None,
            "why": "limit: no kernel",
            "seconds": 3.0,
            "largest_bytes": 1 << 29,
        },
    ],
    "not_done": ["kda-for-trainium/workspaces/silu/runs/silu_v2.py"],
}


def faults(half: str, kind: str, **counts: int) -> dict[str, Any]:
    usual = {"faults": 10, "first": 9, "top": 10, "missed": 0, "named": 8, "alarms": 0}
    about = {"half": half, "reference": "float64", "commit": "0123456789ab"}
    about["kind"] = kind
    return {**about, **usual, **counts}


FAULTS = {
    "entries": [
        faults("seen", "overflow", first=8),
        faults("seen", "all", first=8),
        faults("held out", "integer", alarms=1),
        faults("held out", "all", alarms=1),
    ]
}


def documents() -> dict[str, dict[str, Any]]:
    """Name -> results."""
    from benchmarks import time_model

    bodies = {
        "native": NATIVE,
        "peers": PEERS,
        "scaling": SCALING,
        "time_model": {
            "entries": ROWS,
            "summary": time_model.summary(ROWS),
            "band": time_model.BAND,
        },
        "validate_kernels": KERNELS,
        "leave_one_out": LEFT_OUT,
        "validate_numerics": NUMERICS,
        "fp32_models": MODELS,
        "judge_kernels": JUDGED,
        "faults": FAULTS,
        "regression": REGRESSION,
    }
    return {
        name: results_file.document(name, body, quick=True, seconds=1.0, **ABOUT)
        for name, body in bodies.items()
    }
