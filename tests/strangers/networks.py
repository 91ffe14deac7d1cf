"""Networks of Haiku, Equinox, Keras, Penzai, Jraph and e3nn, one step of each."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp

from tests.strangers.program import Call, descent, stranger
from tests.zoo.program import cross_entropy, integers, uniform

KEY = jax.random.key(0)


# ---- Haiku.


def _haiku(forward, x, labels) -> Call:
    """A step of gradient descent on the cross entropy of a transformed function."""
    import haiku as hk

    model = hk.without_apply_rng(hk.transform(forward))
    loss = lambda p, x, y: cross_entropy(model.apply(p, x), y)[0]  # noqa: E731
    return descent(loss), (model.init(KEY, x), x, labels)


@stranger("dm-haiku")
def haiku_mlp() -> Call:
    """Perceptron, one step."""
    import haiku as hk

    forward = lambda x: hk.nets.MLP([24, 10], activation=jax.nn.swish)(x)  # noqa: E731
    return _haiku(forward, uniform(1, (16, 8)), integers(2, (16,), 10))


@stranger("dm-haiku")
def haiku_resnet_block() -> Call:
    """A residual block with batch norm and its state."""
    import haiku as hk

    def forward(x):
        block = hk.nets.ResNet.BlockV1(
            8, 2, use_projection=True, bn_config={"decay_rate": 0.9}, bottleneck=False
        )
        return hk.Linear(10)(block(x, True, False).mean((1, 2)))

    model, x = (
        hk.without_apply_rng(hk.transform_with_state(forward)),
        uniform(1, (3, 8, 8, 4)),
    )
    params, state = model.init(KEY, x)

    def loss(params, state, x, labels):
        logits, state = model.apply(params, state, x)
        return cross_entropy(logits, labels)[0], state

    step = jax.value_and_grad(loss, has_aux=True)
    return step, (params, state, x, integers(2, (3,), 10))


@stranger("dm-haiku")
def haiku_lstm() -> Call:
    """An LSTM unrolled by scan, one step."""
    import haiku as hk

    def forward(x):
        core = hk.LSTM(12)
        out, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
        return hk.Linear(10)(out[-1])

    return _haiku(forward, uniform(1, (7, 4, 5)), integers(2, (4,), 10))


@stranger("dm-haiku")
def haiku_transformer() -> Call:
    """A transformer block, one step."""
    import haiku as hk

    def forward(x):
        init = hk.initializers.VarianceScaling(1.0)
        attention = hk.MultiHeadAttention(2, 8, w_init=init)
        norm = hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)
        x = x + attention(norm, norm, norm)
        return hk.Linear(10)(x.mean(1))

    return _haiku(forward, uniform(1, (3, 6, 16)), integers(2, (3,), 10))


@stranger("dm-haiku")
def haiku_vector_quantizer() -> Call:
    """A vector quantizer with a straight-through gradient."""
    import haiku as hk

    def forward(x):
        out = hk.nets.VectorQuantizer(6, 11, 0.25)(x, is_training=True)
        return out["quantize"], out["loss"], out["encoding_indices"]

    model, x = hk.without_apply_rng(hk.transform(forward)), uniform(1, (9, 6))
    params = model.init(KEY, x)

    def loss(params, x):
        quantized, value, codes = model.apply(params, x)
        return value + jnp.mean((quantized - x) ** 2), codes

    return jax.value_and_grad(loss, has_aux=True), (params, x)


# ---- Equinox.


def _equinox(model, forward, x, labels) -> Call:
    """A step on the arrays of a model, the rest being static."""
    import equinox as eqx

    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(params, x, labels):
        module = eqx.combine(params, static)
        logits = jax.vmap(lambda example: forward(module, example))(x)
        return cross_entropy(logits, labels)[0]

    return descent(loss), (params, x, labels)


@stranger("equinox")
def equinox_mlp() -> Call:
    """Perceptron, one step."""
    import equinox as eqx

    model = eqx.nn.MLP(8, 10, 24, 2, key=KEY)
    x, labels = uniform(1, (16, 8)), integers(2, (16,), 10)
    return _equinox(model, lambda m, x: m(x), x, labels)


@stranger("equinox")
def equinox_cnn() -> Call:
    """Convolutions, max pooling and group norm, one step."""
    import equinox as eqx

    keys = jax.random.split(KEY, 2)
    model = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(3, 8, 3, key=keys[0]),
            eqx.nn.GroupNorm(2, 8),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.MaxPool2d(2, 2),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(128, 10, key=keys[1]),
        ]
    )
    x, labels = uniform(1, (4, 3, 10, 10)), integers(2, (4,), 10)
    return _equinox(model, lambda m, x: m(x), x, labels)


@stranger("equinox")
def equinox_gru() -> Call:
    """A GRU by scan, one step."""
    import equinox as eqx

    model = (
        eqx.nn.GRUCell(5, 12, key=KEY),
        eqx.nn.Linear(12, 10, key=jax.random.key(1)),
    )

    def forward(model, x):
        cell, head = model
        last, _ = jax.lax.scan(lambda h, x: (cell(x, h), None), jnp.zeros(12), x)
        return head(last)

    x, labels = uniform(1, (4, 7, 5)), integers(2, (4,), 10)
    return _equinox(model, forward, x, labels)


@stranger("equinox")
def equinox_attention() -> Call:
    """Attention with rotary embeddings, one step."""
    import equinox as eqx

    attention = eqx.nn.MultiheadAttention(2, 16, key=KEY)
    rotary = eqx.nn.RotaryPositionalEmbedding(8)
    head = eqx.nn.Linear(16, 10, key=jax.random.key(1))

    def rotate(query, key, value):
        turn = jax.vmap(rotary, in_axes=1, out_axes=1)
        return turn(query), turn(key), value

    def forward(model, x):
        attention, head = model
        return head(attention(x, x, x, process_heads=rotate).mean(0))

    x, labels = uniform(1, (3, 6, 16)), integers(2, (3,), 10)
    return _equinox((attention, head), forward, x, labels)


@stranger("equinox")
def equinox_batch_norm() -> Call:
    """Batch norm with its state under vmap."""
    import equinox as eqx

    model, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(
        6, axis_name="batch", mode="batch"
    )
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(params, state, x):
        module = eqx.combine(params, static)
        mapped = jax.vmap(module, (0, None), (0, None), axis_name="batch")
        out, state = mapped(x, state)
        return jnp.mean(jnp.sin(out)), state

    step = jax.value_and_grad(loss, has_aux=True)
    return step, (params, state, uniform(1, (9, 6)))


# ---- Keras on JAX.


def _keras():
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras

    keras.utils.set_random_seed(0)
    return keras


def _keras_step(model, x, labels) -> Call:
    """The gradient of a model's cross entropy by `stateless_call`."""
    trained = [v.value for v in model.trainable_variables]
    rest = [v.value for v in model.non_trainable_variables]

    def loss(trained, rest, x, labels):
        logits, rest = model.stateless_call(trained, rest, x, training=True)
        return cross_entropy(logits, labels)[0], rest

    return jax.value_and_grad(loss, has_aux=True), (trained, rest, x, labels)


@stranger("keras")
def keras_mlp() -> Call:
    """Perceptron, its gradient."""
    keras = _keras()
    layers = keras.layers
    model = keras.Sequential(
        [layers.Input((8,)), layers.Dense(24, "gelu"), layers.Dense(10)]
    )
    return _keras_step(model, uniform(1, (16, 8)), integers(2, (16,), 10))


@stranger("keras")
def keras_cnn() -> Call:
    """Separable convolutions and batch norm, their gradient."""
    keras = _keras()
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((10, 10, 3)),
            layers.SeparableConv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    return _keras_step(model, uniform(1, (4, 10, 10, 3)), integers(2, (4,), 10))


@stranger("keras")
def keras_lstm() -> Call:
    """A bidirectional LSTM, its gradient."""
    keras = _keras()
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((6, 5)),
            layers.Bidirectional(layers.LSTM(8)),
            layers.Dense(10),
        ]
    )
    return _keras_step(model, uniform(1, (4, 6, 5)), integers(2, (4,), 10))


@stranger("keras")
def keras_transformer() -> Call:
    """Embedding, attention and layer norm, their gradient."""
    keras = _keras()
    layers = keras.layers
    tokens = layers.Input((6,), dtype="int32")
    x = layers.Embedding(30, 16)(tokens)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))
    logits = layers.Dense(10)(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(tokens, logits)
    return _keras_step(model, integers(1, (3, 6), 30), integers(2, (3,), 10))


# ---- Penzai.


@stranger("penzai")
def penzai_mlp() -> Call:
    """Perceptron over named axes, one step."""
    import penzai.models.simple_mlp
    from penzai import pz

    model = penzai.models.simple_mlp.MLP.from_config(
        name="mlp", init_base_rng=KEY, feature_sizes=[8, 24, 10]
    )
    free, params = pz.unbind_params(model, freeze=True)

    def loss(params, x, labels):
        bound = pz.bind_variables(free, params)
        logits = bound(pz.nx.wrap(x, "batch", "features")).unwrap("batch", "features")
        return cross_entropy(logits, labels)[0]

    step = jax.value_and_grad(loss)
    return step, (params, uniform(1, (6, 8)), integers(2, (6,), 10))


@stranger("penzai")
def penzai_named_axes() -> Call:
    """Arrays with named axes: a normalised attention by hand."""
    from penzai import pz

    def attend(query, key, value):
        q = pz.nx.wrap(query, "head", "to", "depth")
        k = pz.nx.wrap(key, "head", "from", "depth")
        v = pz.nx.wrap(value, "head", "from", "depth")
        dot = pz.nx.nmap(jnp.dot)
        scores = dot(q.untag("depth"), k.untag("depth"))
        weights = pz.nx.nmap(jax.nn.softmax)(scores.untag("from"))
        out = dot(weights, v.untag("from"))
        return out.unwrap("head", "to", "depth")

    return attend, tuple(uniform(i, (2, 5, 8)) for i in range(3))


# ---- Graphs and symmetries.


def _graph():
    import jraph

    return jraph.GraphsTuple(
        nodes=uniform(1, (7, 5)),
        edges=uniform(2, (11, 3)),
        senders=integers(3, (11,), 7),
        receivers=integers(4, (11,), 7),
        globals=uniform(5, (2, 4)),
        n_node=jnp.array([3, 4]),
        n_edge=jnp.array([5, 6]),
    )


@stranger("jraph")
def jraph_network() -> Call:
    """A graph network of edges, nodes and globals, its gradient."""
    import jraph

    def net(weights, graph):
        layer = lambda w: jraph.concatenated_args(lambda x: jnp.tanh(x @ w))  # noqa: E731
        update = [layer(weights[part]) for part in ("edges", "nodes", "globals")]
        return jraph.GraphNetwork(*update)(graph)

    weights = {
        "edges": uniform(6, (17, 6), 0.3),
        "nodes": uniform(7, (21, 6), 0.3),
        "globals": uniform(8, (16, 6), 0.3),
    }

    def loss(weights, graph):
        return jnp.sum(net(weights, graph).globals ** 2)

    return descent(loss), (weights, _graph())


@stranger("jraph")
def jraph_attention() -> Call:
    """A graph attention layer."""
    import jraph

    def layer(weights, attention, graph):
        net = jraph.GAT(
            attention_query_fn=lambda nodes: nodes @ weights,
            attention_logit_fn=lambda s, r, e: jnp.concatenate([s, r], -1) @ attention,
        )
        return net(graph).nodes

    return layer, (
        uniform(6, (5, 4)),
        uniform(7, (8, 1)),
        _graph()._replace(edges=None),
    )


@stranger("e3nn-jax")
def e3nn_tensor_product() -> Call:
    """Spherical harmonics and a tensor product of representations."""
    import e3nn_jax as e3nn

    def invariants(x, y):
        harmonics = e3nn.spherical_harmonics("0e + 1o + 2e", x, normalize=True)
        product = e3nn.tensor_product(harmonics, e3nn.IrrepsArray("1o", y))
        return e3nn.norm(product).array

    return jax.vmap(invariants), (uniform(1, (6, 3)), uniform(2, (6, 3)))


@stranger("e3nn-jax")
def e3nn_gate() -> Call:
    """An equivariant gate and its gradient."""
    import e3nn_jax as e3nn

    def energy(x):
        gated = e3nn.gate(e3nn.IrrepsArray("8x0e + 2x0e + 2x1o", x))
        return jnp.sum(gated.array**2)

    return jax.value_and_grad(energy), (uniform(1, (4, 16)),)
