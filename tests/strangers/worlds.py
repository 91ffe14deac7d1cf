"""Worlds and pictures: Brax, Gymnax, JAX MD, jaxlie, dm-pix and others, one step."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tests.strangers.program import Call, stranger
from tests.zoo.program import uniform

KEY = jax.random.key(0)


@stranger("gymnax")
def gymnax_cartpole() -> Call:
    """CartPole: a rollout of five steps."""
    return _rollout("CartPole-v1", lambda key: jax.random.randint(key, (), 0, 2))


@stranger("gymnax")
def gymnax_pendulum() -> Call:
    """Pendulum: a rollout of five steps."""
    return _rollout("Pendulum-v1", lambda key: jax.random.uniform(key, (1,)))


def _rollout(name, choose) -> Call:
    import gymnax

    env, options = gymnax.make(name)

    def rollout(state, key):
        def step(state, key):
            seen = env.step(key, state, choose(key), options)
            return seen[1], (seen[0], *seen[2:-1])

        return jax.lax.scan(step, state, jax.random.split(key, 5))

    return rollout, (env.reset(KEY, options)[1], KEY)


@stranger("brax")
def brax_env() -> Call:
    """A swinging pendulum, one step of generalized dynamics."""
    from brax import envs

    env = envs.get_environment("inverted_pendulum", backend="generalized")
    state = jax.jit(env.reset)(jax.random.PRNGKey(0))

    def step(state, action):
        after = env.step(state, action)
        return after.obs, after.reward, after.done

    return step, (state, uniform(1, (1,)))


@stranger("brax")
def brax_math() -> Call:
    """Quaternions and inertia."""
    from brax import math

    def turn(v, q):
        q = math.normalize(q)[0]
        return math.rotate(v, q), math.quat_to_3x3(q), math.quat_mul(q, q)

    return turn, (uniform(1, (3,)), uniform(2, (4,)))


@stranger("jax-md")
def jax_md_energy() -> Call:
    """Lennard-Jones' energy and forces."""
    from jax_md import energy, quantity, space

    displacement, _ = space.periodic(3.0)
    total = energy.lennard_jones_pair(displacement)
    force = quantity.force(total)
    return lambda r: (total(r), force(r)), (1.5 + _lattice(),)


def _lattice():
    """Eight particles near the corners of a cube."""
    corners = jnp.stack(jnp.meshgrid(*[jnp.arange(2.0)] * 3), -1).reshape(-1, 3)
    return 1.3 * corners + uniform(1, (8, 3), 0.1)


@stranger("jax-md")
def jax_md_dynamics() -> Call:
    """Ten steps of velocity Verlet."""
    from jax_md import energy, simulate, space

    displacement, shift = space.periodic(3.0)
    total = energy.soft_sphere_pair(displacement)
    init, step = simulate.nve(total, shift, 1e-3)

    def run(r, key):
        state = jax.lax.fori_loop(0, 10, lambda i, s: step(s), init(key, r, kT=0.1))
        return state.position, state.momentum

    return run, (_lattice(), KEY)


@stranger("jaxlie")
def jaxlie_se3() -> Call:
    """Rigid motions: exponential, logarithm, composition and a gradient."""
    import jaxlie

    def distance(a, b):
        motion = jaxlie.SE3.exp(a).inverse() @ jaxlie.SE3.exp(b)
        return jnp.sum(motion.log() ** 2)

    return jax.value_and_grad(distance), (uniform(1, (6,)), uniform(2, (6,)))


@stranger("dm-pix")
def pix_augmentations() -> Call:
    """Random augmentations of an image."""
    import dm_pix as pix

    def augment(image, key):
        keys = jax.random.split(key, 3)
        image = pix.random_flip_left_right(keys[0], image)
        image = pix.random_brightness(keys[1], image, 0.2)
        image = pix.random_contrast(keys[2], image, 0.5, 1.5)
        return pix.gaussian_blur(image, 1.0, 3)

    return augment, (0.5 + uniform(1, (12, 12, 3), 0.5), KEY)


@stranger("dm-pix")
def pix_metrics() -> Call:
    """Similarity and signal to noise of two images."""
    import dm_pix as pix

    def measures(a, b):
        return pix.psnr(a, b), pix.ssim(a, b), pix.rgb_to_hsv(a)

    args = 0.5 + uniform(1, (16, 16, 3), 0.5), 0.5 + uniform(2, (16, 16, 3), 0.5)
    return measures, args


@stranger("jumanji")
def jumanji_env() -> Call:
    """The game 2048, one move."""
    import jumanji

    env = jumanji.make("Game2048-v1")
    state, _ = jax.jit(env.reset)(jax.random.PRNGKey(0))

    def step(state, action):
        after, timestep = env.step(state, action)
        return after.board, timestep.reward, timestep.observation.action_mask

    return step, (state, jnp.int32(1))


@stranger("qdax")
def qdax_repertoire() -> Call:
    """MAP-Elites: a batch of genotypes added to a repertoire."""
    from qdax.core.containers.mapelites_repertoire import MapElitesRepertoire

    centroids = uniform(1, (9, 2))

    def add(x, more):
        fitness = lambda x: -jnp.sum(x**2, -1, keepdims=True)  # noqa: E731
        repertoire = MapElitesRepertoire.init(x, fitness(x), x[:, :2], centroids, {})
        repertoire = repertoire.add(more, more[:, :2], fitness(more), {})
        return repertoire.genotypes, repertoire.fitnesses

    return add, (uniform(2, (5, 3)), uniform(3, (5, 3)))


@stranger("qwix")
def qwix_dot() -> Call:
    """A matrix product of integers with scales."""
    import qwix

    def product(x, w):
        q = qwix.quantize(w, "int8", channelwise_axes=(1,))
        return x @ qwix.dequantize(q)

    return product, (uniform(1, (4, 8)), uniform(2, (8, 6)))
