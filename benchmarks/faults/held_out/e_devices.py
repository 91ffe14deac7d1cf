"""Programs over 4 or 8 devices: sums, exchanges and halos by `jax.shard_map`."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import mlp
from benchmarks.faults.parts import layer_norm

MESH4 = nj.make_mesh((4,), ("x",))
MESH8 = nj.make_mesh((8,), ("x",))
MANY = "trn2.48xlarge"


def over(mesh, ins, outs):
    return lambda f: jax.shard_map(f, mesh=mesh, in_specs=ins, out_specs=outs)


@fault("overflow", policy="fp16", target=MANY)
@source("reports of data parallelism: the sum of scaled gradients over ranks is Inf")
@inputs("mlp 12x24x2 @1", "64x12 @2; 64x2 *3 +6 @3", "f32 32768")
def scaled_gradients_summed_in_half(params, x, y, loss_scale):
    def loss(params, x, y):
        return jnp.mean(jnp.square(mlp(params, x) - y))

    @over(MESH8, (P(), P("x"), P("x")), (P(), P()))
    def gradients(params, x, y):
        params = jax.lax.pcast(params, "x", to="varying")
        value, grads = jax.value_and_grad(lambda p: loss_scale / 8.0 * loss(p, x, y))(
            params
        )
        grads = jax.tree.map(lambda g: g.astype(jnp.float16), grads)  # -
        total = jax.tree.map(lambda g: jax.lax.psum(g, "x"), grads)  # here
        total = jax.tree.map(lambda g: g.astype(jnp.float32) / loss_scale, total)
        return total, jax.lax.psum(value, "x") / loss_scale

    grads, value = gradients(params, x, y)
    nu = jax.tree.map(lambda g: 0.01 * g * g, grads)
    moved = jax.tree.map(
        lambda p, g, v: p - 1e-2 * g / (jnp.sqrt(v / 0.01) + 1e-4), params, grads, nu
    )
    return moved, grads, value


@fault("overflow", policy="bf16", target=MANY)
@source("reports of losses over a sharded vocabulary without the maximum over ranks")
@inputs("32x16 @4; 16x16 *1.5 @5; 16x64 *9 @6; 32 int 0..64 @7; 16x64 *0.1 @8")
def a_sharded_vocabulary_without_its_maximum(x, w, unembed, labels, velocity):
    @over(MESH8, (P(), P(None, "x"), P()), P())
    def loss(h, shard, labels):
        logits = h @ shard
        first = jax.lax.axis_index("x") * 8
        top = jnp.zeros(32)  # -
        # + top = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
        # + top = jnp.max(jax.lax.all_gather(top, "x"), axis=0)
        # + top = jax.lax.pmean(top, "x")
        grown = jnp.exp(logits - top[:, None])  # here
        total = jax.lax.psum(jnp.sum(grown, axis=-1), "x")
        here = (labels >= first) & (labels < first + 8)
        column = jnp.clip(labels - first, 0, 7)[:, None]
        chosen = jnp.take_along_axis(logits, column, axis=1)[:, 0]
        chosen = jax.lax.psum(jnp.where(here, chosen, 0.0), "x")
        return jnp.mean(jnp.log(total) + top - chosen)

    def whole(weights):
        h = layer_norm(x + jnp.tanh(x @ weights["w"]))
        return loss(h, weights["unembed"], labels)

    params = {"w": w, "unembed": unembed}
    value, grads = jax.value_and_grad(whole)(params)
    velocity = 0.9 * velocity + grads["unembed"]
    return value, w - 0.1 * grads["w"], unembed - 0.1 * velocity


@fault("cancellation", policy="fp32")
@source("reports of synchronized batch norm: E[x^2] - E[x]^2 over ranks")
@inputs("64x12 *0.2 +900 @9; 12 =1; 12 =0; 12x4 w @10; 64x4 @11")
def batch_norm_over_ranks_in_one_pass(x, gain, bias, w, y):
    @over(MESH4, (P("x"), P(), P()), (P("x"), P()))
    def norm(x, gain, bias):
        mean = jax.lax.pmean(jnp.mean(x, axis=0), "x")
        squares = jax.lax.pmean(jnp.mean(x * x, axis=0), "x")
        var = jnp.maximum(squares - mean * mean, 0.0)  # fault
        # + var = jax.lax.pmean(jnp.mean(jnp.square(x - mean), axis=0), "x")
        out = (x - mean) * jax.lax.rsqrt(var + 1e-5)
        return out * gain + bias, var

    def loss(params):
        h, var = norm(x, params["gain"], params["bias"])
        return jnp.mean(jnp.square(jax.nn.relu(h) @ params["w"] - y)), var

    params = {"gain": gain, "bias": bias, "w": w}
    (value, var), grads = jax.value_and_grad(loss, has_aux=True)(params)
    running = 0.9 * jnp.ones(12) + 0.1 * var
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), running, value


@fault("underflow", policy="bf16")
@source("reports of sharded training that normalizes its gradients by a norm in half")
@inputs("16x32 w @12; 32x4 w @13; 32x16 @14; 32x4 @15")
def shards_of_a_norm_that_are_zero_in_half(w1, w2, x, y):
    def loss(params):
        out = jax.nn.gelu(x @ params["w1"]) @ params["w2"]
        return 3e-4 * jnp.mean(jnp.square(out - y))

    @over(MESH4, (P("x"), P("x"), P("x")), (P("x"), P("x"), P()))
    def update(p, g, m):
        half = g.astype(jnp.float16)  # -
        # + half = g
        total = jax.lax.psum(jnp.sum(half * half), "x")  # here
        norm = jnp.sqrt(total.astype(jnp.float32))
        m = 0.9 * m + g / (norm + 1e-6)
        return p - 0.02 * m, m, norm

    params = {"w1": w1, "w2": w2}
    value, grads = jax.value_and_grad(loss)(params)
    new1 = update(w1, grads["w1"], jnp.zeros_like(w1))
    new2 = update(w2, grads["w2"], jnp.zeros_like(w2))
    return new1, new2, value


@fault("integer", policy="bf16", target=MANY)
@source("reports of compressed gradients: the sum over ranks of int8 codes wraps")
@inputs("mlp 10x16x3 @16", "64x10 @17; 64x3 *0.5 +1 @18; 64x3 @19")
def codes_of_gradients_that_wrap(params, x, y, noise):
    @over(MESH8, (P(), P("x"), P("x")), (P(), P()))
    def gradients(params, x, y):
        params = jax.lax.pcast(params, "x", to="varying")

        def loss(p):
            return jnp.mean(jnp.square(mlp(p, x) - y))

        value, grads = jax.value_and_grad(loss)(params)

        def reduced(g):
            top = jnp.max(jax.lax.all_gather(jnp.max(jnp.abs(g)), "x"))
            step = jax.lax.pmean(top, "x") / 127.0
            code = jnp.round(g / step).astype(jnp.int8)
            total = jax.lax.psum(code, "x")  # fault
            # + total = jax.lax.psum(code.astype(jnp.int32), "x")
            return total.astype(jnp.float32) * step / 8.0

        return jax.tree.map(reduced, grads), jax.lax.pmean(value, "x")

    y = y + 0.1 * noise
    grads, value = gradients(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), grads, value


@fault("coarse", policy="fp32")
@source("reports of ring attention that passes its logarithms of sums on in BF16")
@inputs(
    "64x32 @20; 32x16 *0.25 @21; 32x16 *0.25 @22; 32x16 w @23; 16x32 w @24; 16 *24 @25"
)
def a_ring_of_keys_with_coarse_sums(x, wq, wk, wv, wo, key_bias):
    h = layer_norm(x)
    q, k, v = h @ wq * 0.5, h @ wk + key_bias, h @ wv

    @over(MESH4, (P("x"), P("x"), P("x")), P("x"))
    def attend(q, k, v):
        reads, sums = [], []
        for _ in range(4):
            scores = q @ k.T
            top = jnp.max(scores, axis=-1, keepdims=True)
            grown = jnp.exp(scores - top)
            total = jnp.sum(grown, axis=-1, keepdims=True)
            reads.append(grown @ v / total)
            size = (jnp.log(total) + top).astype(jnp.bfloat16)  # fault
            # + size = jnp.log(total) + top
            sums.append(size.astype(jnp.float32))
            around = [(i, (i + 1) % 4) for i in range(4)]
            k, v = (jax.lax.ppermute(a, "x", around) for a in (k, v))
        share = jax.nn.softmax(jnp.stack(sums), axis=0)
        return jnp.sum(share * jnp.stack(reads), axis=0)

    read = attend(q, k, v)
    x = x + read @ wo
    return read, x + jax.nn.gelu(layer_norm(x) @ wv) @ wo


@fault("underflow", policy="bf16")
@source("reports of sharded optimizers: gradients vanish in half before the exchange")
@inputs("24x16 w @25; 16x8 w @26; 64x24 @27; 64x8 @28; 24x16 =0")
def gradients_exchanged_without_a_scale(w1, w2, x, y, momentum):
    @over(MESH4, (P(), P(), P("x"), P("x"), P("x")), (P("x"), P("x"), P()))
    def step(w1, w2, x, y, mine):
        w1 = jax.lax.pcast(w1, "x", to="varying")

        def loss(w):
            out = jnp.tanh(x @ w) @ w2
            return 3e-8 * jnp.mean(jnp.square(out - y))

        value, g = jax.value_and_grad(loss)(w1)
        sent = g.astype(jnp.float16)  # fault
        # + sent = (g * 2.0**20).astype(jnp.float16)
        shard = jax.lax.psum_scatter(sent, "x", scatter_dimension=0, tiled=True)
        shard = shard.astype(jnp.float32)
        # + shard = shard * 2.0**-20
        mine = 0.9 * mine + 0.1 * shard
        place = 6 * jax.lax.axis_index("x")
        own = jax.lax.dynamic_slice_in_dim(w1, place, 6)
        return own - 0.01 * jnp.sign(mine), mine, jax.lax.pmean(value, "x")

    return step(w1, w2, x, y, momentum)


@fault("stale-scale", "saturation", policy="bf16")
@source("reports of pipelines that send int8 with the range of an earlier batch")
@inputs("16x24 *6 @30; 4x24x24 *0.33 @31; f32 1.1; 24x6 w @32")
def stages_that_send_with_an_old_range(x, weights, old_range, readout):
    @over(MESH4, (P(), P("x")), P("x"))
    def pipeline(x, w):
        rank = jax.lax.axis_index("x")
        h = jax.lax.pcast(x, "x", to="varying")
        for stage in range(4):
            grown = jax.nn.relu(h @ w[0]) + 0.1 * h
            h = jnp.where(rank == stage, grown, h)
            step = old_range / 127.0  # -
            # + step = jnp.max(jnp.abs(h)) / 127.0
            code = jnp.clip(jnp.round(h / step), -127, 127).astype(jnp.int8)  # here
            code = jax.lax.ppermute(code, "x", [(i, (i + 1) % 4) for i in range(4)])
            step = jnp.float32(step)  # -
            # + step = jax.lax.ppermute(step, "x", [(i, (i + 1) % 4) for i in range(4)])
            came = code.astype(jnp.float32) * step
            h = jnp.where(rank == stage + 1, came, h)
        return h[None]

    last = pipeline(x, weights)[3]
    return last, jax.nn.softmax(layer_norm(last) @ readout)


@fault("non-finite", policy="fp8")
@source("reports of k-means over ranks: a centre without members is 0/0")
@inputs("64x6 @33; 5x6 @34")
def a_centre_without_members(points, centres):
    centres = centres.at[4].add(40.0)

    @over(MESH4, (P("x"), P()), (P(), P()))
    def improve(points, centres):
        far = jnp.sum(jnp.square(points[:, None] - centres), axis=-1)
        member = jax.nn.one_hot(jnp.argmin(far, axis=-1), 5)
        count = jax.lax.psum(jnp.sum(member, axis=0), "x")
        total = jax.lax.psum(jnp.einsum("nk,nd->kd", member, points), "x")
        mean = total / count[:, None]  # fault
        # + mean = total / jnp.maximum(count, 1.0)[:, None]
        cost = jax.lax.psum(jnp.sum(jnp.min(far, axis=-1)), "x")
        return 0.1 * centres + 0.9 * mean, cost

    costs = []
    for _ in range(2):
        centres, cost = improve(points, centres)
        centres = centres.at[4].set(jnp.minimum(centres[4], 60.0))
        costs.append(cost)
    return centres, jnp.stack(costs)


@fault("absorption", "stagnation", policy="bf16")
@source("reports of stencils over devices that hold their field in BF16")
@inputs("64 even 0..3; 64 =1; f32 0.02; f32 0.03")
def heat_over_devices_that_stops(place, start, rate, source):
    field = start + 6.0 * jnp.exp(-jnp.square(place - 1.5) * 0.5)
    field = field.astype(jnp.bfloat16)  # -

    @over(MESH4, P("x"), (P("x"), P("x")))
    def solve(u):
        rank = jax.lax.axis_index("x")
        right = [(i, (i + 1) % 4) for i in range(4)]
        left = [(i, (i - 1) % 4) for i in range(4)]

        def turn(u, _):
            w = u.astype(jnp.float32)
            before = jax.lax.ppermute(w[-1:], "x", right)
            after = jax.lax.ppermute(w[:1], "x", left)
            before = jnp.where(rank == 0, w[:1], before)
            after = jnp.where(rank == 3, w[-1:], after)
            wide = jnp.concatenate([before, w, after])
            curve = wide[2:] - 2 * w + wide[:-2]
            gain = rate * curve + source / (1 + w)
            u = u + gain.astype(u.dtype)  # here
            return u, jnp.max(jnp.abs(curve))

        u, trace = jax.lax.scan(turn, u, length=128)
        return u.astype(jnp.float32), trace[None]

    return solve(field)


@fault("integer", "coarse", policy="bf16")
@source(
    "reports of generation over stages: token ids are sent in the activations' dtype"
)
@inputs("8x16 @33; 4x16x16 *0.25 @34; 16x3000 *0.25 @35; 3000x16 @36; 16x6 w @37")
def tokens_sent_as_activations(x, weights, unembed, table, readout):
    @over(MESH4, (P(), P("x"), P(), P()), (P(), P()))
    def generate(x, w, unembed, table):
        rank = jax.lax.axis_index("x")
        total = jnp.zeros((8, 16))
        chosen = jnp.zeros((2, 8))
        for turn in range(2):
            h = jax.lax.pcast(layer_norm(x + total), "x", to="varying")
            for stage in range(4):
                grown = h + jax.nn.gelu(h @ w[0])
                h = jnp.where(rank == stage, grown, h)
                h = jax.lax.psum(jnp.where(rank == stage, h, 0.0), "x")
                h = jax.lax.pcast(h, "x", to="varying")
            best = jnp.argmax(h @ unembed, axis=-1)
            mine = jnp.where(rank == 3, best, 0)
            sent = jax.lax.psum(mine.astype(jnp.bfloat16), "x")  # fault
            # + sent = jax.lax.psum(mine, "x")
            total = total + table[sent.astype(jnp.int32)]
            chosen = chosen.at[turn].set(sent.astype(jnp.float32))
        return total, chosen

    total, chosen = generate(x, weights, unembed, table)
    return jax.nn.log_softmax(layer_norm(total) @ readout), chosen
