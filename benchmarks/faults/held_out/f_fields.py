"""Geometry, finance, statistics, signals and physics."""

import jax
import jax.numpy as jnp

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import uniform


@fault("singular", "cancellation", "coarse", policy="fp32")
@source("great circles between near places by the law of cosines")
@inputs("40 -60..60 @1; 40 -3e-2..3e-2 @2; 40 -3e-2..3e-2 @3; 40x6 @4")
def great_circles_between_near_places(latitude, north, east, x):
    first = jnp.deg2rad(latitude)
    change, turned = jnp.deg2rad(north), jnp.deg2rad(east)
    second = first + change
    cosine = jnp.cos(first) * jnp.cos(second)
    near = jnp.sin(first) * jnp.sin(second) + cosine * jnp.cos(turned)  # -
    # + half = jnp.sin(change / 2) ** 2 + cosine * jnp.sin(turned / 2) ** 2
    angle = jnp.arccos(jnp.clip(near, -1.0, 1.0))  # fault
    # + angle = 2.0 * jnp.arcsin(jnp.sqrt(half))
    metres = 6371000.0 * angle
    share = jax.nn.softmax(-metres / 1000.0)
    return metres, share @ x


def slivers():
    """Sides, the longest first, and loads."""
    b, c = uniform(11, 64, low=1, high=2), uniform(12, 64, low=1e-6, high=1e-5)
    return b + c * uniform(13, 64, low=0.2, high=0.8), b, c, "64x3 @14"


@fault("cancellation", policy="fp32")
@source("Heron's formula for slivers of a mesh")
@inputs(by=slivers)
def areas_of_slivers_by_heron(a, b, c, normals):
    s = 0.5 * (a + b + c)
    area = jnp.sqrt(jnp.maximum(s * (s - a) * (s - b) * (s - c), 0.0))  # fault
    # + slim = (c - (a - b)) * (c + (a - b))
    # + area = 0.25 * jnp.sqrt((a + (b + c)) * slim * (a + (b - c)))
    height = 2.0 * area / a
    quality = 4.0 * jnp.sqrt(3.0) * area / (a * a + b * b + c * c)
    load = area[:, None] * normals
    return height, quality, jnp.sum(load, axis=0) / jnp.sum(area)


@fault("absorption", "cancellation", policy="fp32")
@source("interest that is added every minute, in FP32")
@inputs("32 1000..9000 @21; 32 0.01..0.05 @22; 32 50..400 @23")
def interest_added_every_minute(principal, rate, fee):
    turns = 365.0 * 24.0 * 60.0
    growth = (1.0 + rate / turns) ** turns - 1.0  # fault
    # + growth = jnp.expm1(turns * jnp.log1p(rate / turns))
    interest = principal * growth
    monthly = rate / 12.0
    payment = principal * monthly / -jnp.expm1(-24.0 * jnp.log1p(monthly))
    tax = 0.25 * jnp.maximum(interest - fee, 0.0)
    return interest, tax, payment


@fault("cancellation", policy="fp32")
@source("gamma of options by bumping the price")
@inputs("48 80..125 @31; 48 0.1..0.6 @32; 48 0.2..2 @33")
def gamma_of_options_by_bumps(spot, sigma, years):
    def price(spot, sigma, years):
        spread = sigma * jnp.sqrt(years)
        first = (jnp.log(spot / 100.0) + 0.02 * years) / spread + 0.5 * spread
        cdf = jax.scipy.stats.norm.cdf
        paid = 100.0 * jnp.exp(-0.02 * years) * cdf(first - spread)
        return spot * cdf(first) - paid

    up, down = (price(spot + h, sigma, years) for h in (0.02, -0.02))
    middle = price(spot, sigma, years)
    gamma = (up - 2.0 * middle + down) / 0.02**2  # fault
    # + gamma = jax.vmap(jax.grad(jax.grad(price)))(spot, sigma, years)
    delta = (price(spot + 2.0, sigma, years) - price(spot - 2.0, sigma, years)) / 4.0
    return gamma, delta, 0.5 * gamma * spot * spot * sigma * sigma / 365.0


@fault("overflow", "non-finite", policy="fp32")
@source("Poisson probabilities by powers and factorials")
@inputs("24 5..45 @41; 24 0.5..2 @42")
def poisson_probabilities_by_factorials(rate, cost):
    k = jnp.arange(80.0)
    logarithm = jnp.cumsum(jnp.log(jnp.maximum(k, 1.0)))
    power = k * jnp.log(rate)[:, None]
    chance = jnp.exp(power) / jnp.exp(logarithm)  # fault
    # + chance = jnp.exp(power - logarithm)
    chance = chance * jnp.exp(-rate)[:, None]
    above = jnp.cumsum(chance[:, ::-1], axis=1)[:, ::-1]
    stock = jnp.argmax(above < 0.1, axis=1)
    expected = jnp.sum(chance * jnp.maximum(k - 30.0, 0.0), axis=1)
    return chance, stock.astype(jnp.float32), cost * expected


@fault("cancellation", policy="fp32")
@source("skewness from raw moments")
@inputs("512x6 0..1 @51; 6 200..400 @52")
def skewness_from_raw_moments(drawn, level):
    x = level - jnp.log(drawn + 1e-3)
    mean = jnp.mean(x, axis=0)
    var = jnp.mean(jnp.square(x - mean), axis=0)
    square, cube = jnp.mean(x**2, axis=0), jnp.mean(x**3, axis=0)
    third = cube - 3.0 * mean * square + 2.0 * mean**3  # fault
    # + third = jnp.mean((x - mean) ** 3, axis=0)
    skew = third / var**1.5
    error = jnp.sqrt(6.0 / 512.0)
    return skew, skew / error, mean + jnp.sqrt(var) * (2.0 + 0.5 * skew)


@fault("coarse", policy="fp32")
@source("tones that drift out of phase late in a recording")
@inputs("i32 4100000; 512 @61; f32 3001 5003")
def phase_of_a_late_sample(first, noise, pitch):
    sample = first + jnp.arange(512)
    late = sample.astype(jnp.float32)  # -
    # + late = (sample % 48000).astype(jnp.float32)
    phase = late[:, None] * (pitch / 48000.0)  # here
    angle = 2.0 * jnp.pi * (phase - jnp.floor(phase))
    tone = jnp.sum(jnp.sin(angle), axis=1)
    ring = jnp.sin(angle[:, 0]) * jnp.sin(angle[:, 1])
    heard = tone + 0.01 * noise
    window = 0.5 - 0.5 * jnp.cos(2.0 * jnp.pi * jnp.arange(512) / 512.0)
    return heard, ring, jnp.cumsum(heard * window) / 512.0


@fault("underflow", "non-finite", "singular", policy="bf16")
@source("levels in decibels from powers in half")
@inputs("16x64 @71; 64 even 0..-13; 64x6 w @72")
def decibels_of_faint_bands_in_half(spectrum, slope, head):
    real = spectrum * jnp.exp(slope)
    imaginary = jnp.roll(spectrum, 7, axis=1) * jnp.exp(slope)
    real, imaginary = real.astype(jnp.float16), imaginary.astype(jnp.float16)
    power = real * real + imaginary * imaginary  # fault
    # + real, imaginary = real.astype(jnp.float32), imaginary.astype(jnp.float32)
    # + power = real * real + imaginary * imaginary
    level = 10.0 * jnp.log10(power.astype(jnp.float32) + 1e-20)
    quiet = jnp.maximum(level, -160.0) / 80.0 + 1.0
    return level, jnp.tanh(quiet @ head)


@fault("cancellation", policy="fp32")
@source("kinetic energies of slow particles from the relativistic factor")
@inputs("48x3 *4e-4 @81; 48 1..20 @82; 48 1e-8..1e-6 @83")
def kinetic_energy_of_slow_particles(beta, mass, charge):
    square = jnp.sum(beta * beta, axis=-1)
    factor = jax.lax.rsqrt(1.0 - square)
    excess = factor - 1.0  # fault
    # + excess = square * factor * factor / (factor + 1.0)
    kinetic = mass * excess
    total = jnp.mean(kinetic)
    heat = 2.0 / 3.0 * total
    momentum = (mass * factor)[:, None] * beta
    return kinetic, heat, momentum, kinetic / (kinetic + charge)


@fault("overflow", "non-finite", policy="fp32")
@source("gravitation in SI units: the product of two masses")
@inputs("6x3 *1e11 @91; 6 1e23..1e27 @92; 6x3 *2e4 @93; f32 3600")
def gravitation_between_masses_in_kilograms(place, mass, speed, step):
    mass = mass.at[0].set(2e30)
    apart = place[None] - place[:, None]
    far = jnp.sqrt(jnp.sum(apart * apart, axis=-1) + 1e12)
    pull = mass[:, None] * mass * 6.674e-11 / (far * far)  # fault
    # + pull = (mass[:, None] * 6.674e-11 / far) * (mass / far)
    force = jnp.sum(pull[..., None] * (apart / far[..., None]), axis=1)
    speed = speed + step * force / mass[:, None]
    place = place + step * speed
    energy = 0.5 * jnp.sum(mass * jnp.sum((speed * 1e-4) ** 2, axis=-1))
    return force / mass[:, None], speed, place, energy
