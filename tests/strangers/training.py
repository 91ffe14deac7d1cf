"""Optimizers and losses: Optax, evosax, rax and others, one step of each."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tests.strangers.program import Call, stranger
from tests.zoo.program import cross_entropy, integers, uniform

KEY = jax.random.key(0)
RATE = 0.05


def _params():
    return {
        "w1": uniform(1, (8, 16), 0.5),
        "b1": uniform(2, (16,), 0.1),
        "w2": uniform(3, (16, 10), 0.5),
    }


def _loss(params, x, labels):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return cross_entropy(hidden @ params["w2"], labels)[0]


BATCH = uniform(4, (12, 8)), integers(5, (12,), 10)


def _optax(optimizer, takes_values: bool = False) -> Call:
    """The third of three steps: the first ones fill the state."""
    import optax

    def step(params, state, x, labels):
        value, gradient = jax.value_and_grad(_loss)(params, x, labels)
        extra = {
            "value": value,
            "grad": gradient,
            "value_fn": lambda p: _loss(p, x, labels),
        }
        extra = extra if takes_values else {}
        updates, state = optimizer.update(gradient, state, params, **extra)
        return optax.apply_updates(params, updates), state, value

    params = _params()
    state = optimizer.init(params)
    for _ in range(2):
        params, state, _ = jax.jit(step)(params, state, *BATCH)
    return step, (params, state, *BATCH)


@stranger("optax")
def optax_adamw() -> Call:
    """AdamW with a warm-up and clipping."""
    import optax

    schedule = optax.warmup_cosine_decay_schedule(0.0, RATE, 5, 50)
    return _optax(optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(schedule)))


@stranger("optax")
def optax_lion() -> Call:
    """Lion."""
    import optax

    return _optax(optax.lion(RATE))


@stranger("optax")
def optax_adafactor() -> Call:
    """Adafactor."""
    import optax

    return _optax(optax.adafactor(RATE, min_dim_size_to_factor=4))


@stranger("optax")
def optax_lamb() -> Call:
    """LAMB."""
    import optax

    return _optax(optax.lamb(RATE))


@stranger("optax")
def optax_lbfgs() -> Call:
    """L-BFGS with its line search."""
    import optax

    return _optax(optax.lbfgs(), takes_values=True)


@stranger("optax")
def optax_multi_steps() -> Call:
    """Gradients accumulated over four steps."""
    import optax

    return _optax(optax.MultiSteps(optax.adam(RATE), 4))


@stranger("optax")
def optax_muon() -> Call:
    """Contrib: Muon."""
    from optax import contrib

    return _optax(contrib.muon(RATE))


@stranger("optax")
def optax_schedule_free() -> Call:
    """Contrib: schedule-free AdamW."""
    from optax import contrib

    return _optax(contrib.schedule_free_adamw(RATE))


@stranger("optax")
def optax_prodigy() -> Call:
    """Contrib: Prodigy."""
    from optax import contrib

    return _optax(contrib.prodigy(RATE))


@stranger("optax")
def optax_sam() -> Call:
    """Contrib: sharpness-aware minimisation."""
    import optax
    from optax import contrib

    return _optax(contrib.sam(optax.sgd(RATE), contrib.normalize(), sync_period=2))


@stranger("evosax")
def evosax_open_es() -> Call:
    """OpenAI's evolution strategy, one generation."""
    import optax
    from evosax.algorithms import Open_ES

    return _generation(Open_ES(8, jnp.zeros(5), optimizer=optax.adam(RATE)))


@stranger("evosax")
def evosax_sep_cma() -> Call:
    """Separable CMA-ES, one generation."""
    from evosax.algorithms import Sep_CMA_ES

    return _generation(Sep_CMA_ES(8, jnp.zeros(5)))


def _generation(strategy) -> Call:
    options = strategy.default_params

    def step(state, key):
        population, state = strategy.ask(key, state, options)
        fitness = jnp.sum((population - 1.5) ** 2, -1)
        return strategy.tell(key, population, fitness, state, options)

    return step, (strategy.init(KEY, uniform(1, (5,)), options), KEY)


@stranger("rax")
def rax_ranking() -> Call:
    """A ranking loss, its gradient and a metric."""
    import rax

    def both(scores, labels):
        value, gradient = jax.value_and_grad(rax.softmax_loss)(scores, labels)
        return value, gradient, rax.ndcg_metric(scores, labels)

    return both, (uniform(1, (6, 9)), integers(2, (6, 9), 4).astype(jnp.float32))


@stranger("flashbax")
def flashbax_buffer() -> Call:
    """A replay buffer: items added and a batch drawn."""
    import flashbax as fbx

    buffer = fbx.make_item_buffer(
        max_length=16, min_length=2, sample_batch_size=4, add_batches=True
    )
    item = {"x": jnp.zeros(3), "action": jnp.int32(0)}

    def step(state, items, key):
        state = buffer.add(state, items)
        return state, buffer.sample(state, key).experience, buffer.can_sample(state)

    items = {"x": uniform(1, (5, 3)), "action": integers(2, (5,), 4)}
    return step, (buffer.init(item), items, KEY)


@stranger("chex")
def chex_asserts() -> Call:
    """A dataclass and static assertions."""
    import chex

    @chex.dataclass
    class State:
        mean: jax.Array
        count: jax.Array

    def update(state, x):
        chex.assert_rank(x, 2)
        chex.assert_equal_shape([state.mean, x[0]])
        count = state.count + len(x)
        return State(mean=state.mean + (x - state.mean).sum(0) / count, count=count)

    state = State(mean=uniform(1, (4,)), count=jnp.float32(3))
    return update, (state, uniform(2, (5, 4)))


@stranger("jaxtyping")
def jaxtyping_annotations() -> Call:
    """A function with annotated shapes."""
    from jaxtyping import Array, Float, jaxtyped

    @jaxtyped(typechecker=None)
    def attend(q: Float[Array, "t d"], k: Float[Array, "u d"]):  # noqa: F722
        return jax.nn.softmax(q @ k.T / jnp.sqrt(q.shape[-1]))

    return attend, (uniform(1, (5, 8)), uniform(2, (6, 8)))
