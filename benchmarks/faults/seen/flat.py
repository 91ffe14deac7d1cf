"""Weights, scores and gates that come out all alike."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import normal, uniform, weight


def search_faulty(params, documents, question):
    """Pools passages by standardized cosines; the embeddings share a direction."""
    keys = jnp.tanh(documents @ params["in"]) + params["common"]
    query = jnp.tanh(question @ params["in"]) + params["common"]
    keys = keys / jnp.linalg.norm(keys, axis=-1, keepdims=True)
    query = query / jnp.linalg.norm(query)
    scores = jnp.sum(keys * query, axis=-1).astype(jnp.bfloat16)  # fault
    scores = scores.astype(jnp.float32)
    standard = (scores - scores.mean()) / (scores.std() + 1e-6)
    share = jax.nn.softmax(2.0 * standard)
    return share, share @ documents


def search_healthy(params, documents, question):
    keys = jnp.tanh(documents @ params["in"]) + params["common"]
    query = jnp.tanh(question @ params["in"]) + params["common"]
    keys = keys / jnp.linalg.norm(keys, axis=-1, keepdims=True)
    query = query / jnp.linalg.norm(query)
    scores = jnp.sum(keys * query, axis=-1)
    standard = (scores - scores.mean()) / (scores.std() + 1e-6)
    share = jax.nn.softmax(2.0 * standard)
    return share, share @ documents


def search_arguments():
    params = {"in": weight(701, 16, 32, 0.7), "common": normal(702, 32, scale=24.0)}
    return params, normal(703, 40, 16), normal(704, 16)


def evidence_faulty(models, noise, x, y, future):
    """Averages regression models by their evidence, as the log sums come in BF16."""
    miss = (x @ models.T - y[:, None]) / noise
    logs = -0.5 * jnp.sum(miss**2, axis=0) - y.size * jnp.log(noise)
    share = jax.nn.softmax(logs.astype(jnp.bfloat16))  # fault
    share = share.astype(jnp.float32)
    return share, future @ (share @ models)


def evidence_healthy(models, noise, x, y, future):
    miss = (x @ models.T - y[:, None]) / noise
    logs = -0.5 * jnp.sum(miss**2, axis=0) - y.size * jnp.log(noise)
    share = jax.nn.softmax((logs - logs.max()).astype(jnp.bfloat16))
    share = share.astype(jnp.float32)
    return share, future @ (share @ models)


def evidence_arguments():
    truth = normal(711, 6)
    models = truth + normal(712, 8, 6, scale=0.012)
    x = normal(713, 6000, 6)
    y = x @ truth + normal(714, 6000)
    noise = np.full(8, 1.0, np.float32)
    return models.astype(np.float32), noise, x, y.astype(np.float32), normal(715, 9, 6)


def chrono_faulty(params, signal):
    """A leaky cell that should forget within a thousand steps, by chrono's bias."""

    def step(cell, x):
        gates = x @ params["gates"] + params["bias"]
        keep = jax.nn.sigmoid(gates.astype(jnp.bfloat16))  # fault
        keep = keep.astype(jnp.float32)
        cell = keep * cell + 0.01 * jnp.tanh(x @ params["in"])
        return cell, keep

    cell, kept = jax.lax.scan(step, params["first"], signal)
    return cell, jnp.prod(kept, axis=0)


def chrono_healthy(params, signal):
    def step(cell, x):
        gates = x @ params["gates"] + params["bias"]
        keep = jax.nn.sigmoid(gates)
        cell = keep * cell + 0.01 * jnp.tanh(x @ params["in"])
        return cell, keep

    cell, kept = jax.lax.scan(step, params["first"], signal)
    return cell, jnp.prod(kept, axis=0)


def chrono_arguments():
    spans = uniform(721, 16, low=600.0, high=1000.0)
    params = {
        "gates": weight(722, 8, 16, 0.05),
        "bias": np.log(spans).astype(np.float32),
        "in": weight(723, 8, 16, 0.3),
        "first": normal(724, 16, scale=2.0),
    }
    return params, normal(725, 400, 8)


FAULTS = (
    Fault(
        name="cosines-of-anisotropic-embeddings-in-bf16",
        kinds=("uniform", "coarse"),
        faulty=search_faulty,
        healthy=search_healthy,
        arguments=search_arguments,
        policy="fp32",
        source="retrieval libraries: all cosines of a narrow cone are 1.0 in BF16",
    ),
    Fault(
        name="evidence-softmax-before-maximum",
        kinds=("uniform", "coarse"),
        faulty=evidence_faulty,
        healthy=evidence_healthy,
        arguments=evidence_arguments,
        policy="fp32",
        source="model averaging: large log evidences lose their differences",
    ),
    Fault(
        name="chrono-forget-gate-rounds-to-one",
        kinds=("uniform", "coarse"),
        faulty=chrono_faulty,
        healthy=chrono_healthy,
        arguments=chrono_arguments,
        policy="bf16",
        source="Tallec and Ollivier (2018), chrono initialization, run in BF16",
    ),
)
