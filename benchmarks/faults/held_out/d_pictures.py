"""Pictures: similarity, colours, moments, denoising, stereo."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import convolution, normal, uniform


def ssim_arguments():
    clean = 0.87 + normal(9001, 32, 40, scale=0.008)
    noisy = clean + normal(9002, 32, 40, scale=0.003)
    return (
        "gain: f32 -0.1, level: f32 0.87",
        noisy.astype(np.float32),
        clean.astype(np.float32),
    )


@fault("cancellation")
@source("torchmetrics issue: SSIM is wrong under mixed precision")
@inputs(by=ssim_arguments)
def d_ssim_of_a_bright_x_ray(params, noisy, clean):
    """SSIM of a denoised X-ray that is bright and nearly flat."""
    taps = jnp.exp(-((jnp.arange(7.0) - 3.0) ** 2) / 4.5)
    window = (jnp.outer(taps, taps) / jnp.sum(taps) ** 2)[..., None, None]
    # + centre = jnp.mean(clean)

    def blur(a):
        return convolution(a[None, ..., None], window)[0, 4:-4, 4:-4, 0]

    def covariance(a, b):
        return blur(a * b) - blur(a) * blur(b)  # here

    x = noisy + params["gain"] * jnp.tanh(noisy - params["level"])
    mean_x, mean_y = blur(x), blur(clean)  # -
    # + x, y = x - centre, clean - centre
    # + mean_x, mean_y = blur(x) + centre, blur(y) + centre
    light = (2 * mean_x * mean_y + 1e-4) / (mean_x**2 + mean_y**2 + 1e-4)
    spread = covariance(x, x) + covariance(clean, clean)  # -
    # + spread = covariance(x, x) + covariance(y, y)
    return light * (2 * covariance(x, clean) + 1e-7) / (spread + 1e-7)  # -
    # + return light * (2 * covariance(x, y) + 1e-7) / (spread + 1e-7)


@fault("integer")
@source("colour conversion questions: 150 * green does not fit int16")
@inputs(
    lambda: np.random.default_rng(9011).integers(20, 250, (20, 28, 3)).astype(np.uint8),
    "3x3x1x4 *0.3 @9012",
)
def d_fixed_point_luma_in_int16(rgb, kernel):
    """Grey values by the fixed-point weights of BT.601, then edges."""
    red, green, blue = jnp.moveaxis(rgb.astype(jnp.int16), -1, 0)  # -
    # + red, green, blue = jnp.moveaxis(rgb.astype(jnp.int32), -1, 0)
    luma = (77 * red + 150 * green + 29 * blue + 128) >> 8  # here
    grey = luma.astype(jnp.float32) / 255.0
    return grey, convolution(grey[None, ..., None], kernel)[0]


@fault("non-finite", "singular")
@source("kornia issues: rgb_to_hsv gives NaN where the picture is black")
# The second picture has a letter box.
@inputs("kernel: 3x3x2x8 *0.3 @9022, head: 8x3 w; 3x16x16x3 0..1 @9021 [1,:3]=0")
def d_saturation_of_black_pixels(params, picture):
    """A classifier of paintings looks at saturation and value of HSV."""
    high, low = picture.max(-1), picture.min(-1)
    saturation = (high - low) / high  # fault
    # + lit = high > 0
    # + saturation = jnp.where(lit, (high - low) / jnp.where(lit, high, 1.0), 0.0)
    planes = jnp.stack([saturation, high], axis=-1)
    h = jax.nn.relu(convolution(planes, params["kernel"], 2))
    return saturation.mean((1, 2)), h.mean((1, 2)) @ params["head"]


def blob_arguments():
    y, x = np.mgrid[:64, :96]
    inside = np.hypot((y - 30) / 20, (x - 55) / 32) < 1
    features = normal(9031, 64, 96, 3, scale=0.3)
    features[..., 0] += np.where(inside, 2.0, -2.5)
    return features, np.array([[3.0], [0.0], [-1.0]], np.float32)


@fault("overflow", "non-finite", policy="fp16")
@source("segmentation post-processing kept under autocast")
@inputs(by=blob_arguments)
def d_mask_moments_in_half(features, head):
    """Centre and axes of a segmented cell by the moments of its mask, in half."""
    mask = jax.nn.sigmoid(features @ head)[..., 0].astype(jnp.float16)
    # + mask = mask.astype(jnp.float32)
    height, width = mask.shape
    y = jnp.arange(height, dtype=mask.dtype)[:, None] + 0 * mask
    x = jnp.arange(width, dtype=mask.dtype)[None, :] + 0 * mask
    basis = jnp.stack([jnp.ones_like(mask), x, y, x * x, x * y, y * y])
    moments = jnp.sum(basis * mask, axis=(1, 2))  # fault
    m = moments.astype(jnp.float32)  # -
    # + m = jnp.sum(basis * mask, axis=(1, 2))
    centre = m[1:3] / m[0]
    xx, xy, yy = m[3:] / m[0]
    cx, cy = centre
    return centre, jnp.stack([xx - cx * cx, xy - cx * cy, yy - cy * cy])


def denoise_arguments():
    start = np.zeros((18, 22), np.float32)
    start[5:12, 6:15] = uniform(9041, 7, 9, low=0.3, high=1.0)
    noisy = start + normal(9042, 18, 22, scale=0.05)
    return start, noisy.astype(np.float32), "f32 0.1"


@fault("non-finite", "singular", policy="fp32")
@source("forum questions: the gradient of isotropic TV is NaN")
@inputs(by=denoise_arguments)
def d_total_variation_of_flat_background(start, noisy, weight):
    """A step of total-variation denoising from a picture with a flat background."""

    def objective(x):
        down = x[1:, :-1] - x[:-1, :-1]
        right = x[:-1, 1:] - x[:-1, :-1]
        length = jnp.sqrt(down * down + right * right)  # fault
        # + square = down * down + right * right
        # + some = square > 0
        # + length = jnp.where(some, jnp.sqrt(jnp.where(some, square, 1.0)), 0.0)
        return 0.5 * jnp.sum((x - noisy) ** 2) + weight * jnp.sum(length)

    value, slope = jax.value_and_grad(objective)(start)
    return value, start - 0.2 * slope


@fault("coarse", "cancellation")
@source("stereo networks in FP16: disparities come in whole pixels")
@inputs(
    "match: 16x1 w @9051; 40x16 @9052; 40 1030..1900 @9053; 40 100..1000 @9054; "
    "f32 1400"
)
def d_parallax_of_half_columns(params, descriptors, column, row, focal):
    """Depths of far points from a stereo pair, whose columns come in half."""
    shift = 1.5 + 3.0 * jax.nn.sigmoid(descriptors @ params["match"])[:, 0]
    other = column - shift
    parallax = column.astype(jnp.float16) - other.astype(jnp.float16)  # fault
    # + parallax = column - other
    depth = focal * 0.12 / parallax.astype(jnp.float32)  # -
    # + depth = focal * 0.12 / parallax
    across = depth * (column - 960.0) / focal
    return jnp.stack([across, depth * (row - 540.0) / focal, depth], axis=-1)


def fusion_arguments():
    """Dark, normal and bright shots of a scene that is mostly black and white."""
    rng = np.random.default_rng(9061)
    tiles = np.kron(rng.random((5, 5)) < 0.5, np.ones((3, 3)))[:14, :14, None]
    scene = np.where(tiles > 0, 0.01, 0.985) + 0.01 * rng.random((14, 14, 3))
    stack = scene * np.array([0.9, 0.97, 1.0])[:, None, None, None]
    return (np.clip(stack, 0, 1).astype(np.float32),)


@fault("underflow", "non-finite", policy="fp16")
@source("Mertens et al. (2007); ports to half lose their 1e-12")
@inputs(by=fusion_arguments)
def d_exposure_fusion_weights_in_half(stack):
    """Mertens' exposure fusion of a bracket, its weights in half."""
    shots = stack.astype(jnp.float16)
    grey = shots.mean(-1)
    middle = grey[:, 1:-1, 1:-1]
    around = grey[:, 2:, 1:-1] + grey[:, :-2, 1:-1]
    around = around + grey[:, 1:-1, 2:] + grey[:, 1:-1, :-2]
    contrast = jnp.abs(around - 4 * middle) + 1e-4  # -
    # + contrast = jnp.abs(around - 4 * middle).astype(jnp.float32) + 1e-4
    inner = shots[:, 1:-1, 1:-1]  # -
    # + inner = shots[:, 1:-1, 1:-1].astype(jnp.float32)
    colour = inner.max(-1) - inner.min(-1)
    well = jnp.exp(-jnp.sum((inner - 0.5) ** 2, axis=-1) / 0.08)
    weights = contrast * colour * well  # fault
    wide = weights.astype(jnp.float32)  # -
    # + wide = contrast * colour * well
    share = wide / jnp.sum(wide, axis=0)
    return jnp.sum(share[..., None] * inner.astype(jnp.float32), axis=0)  # -
    # + return jnp.sum(share[..., None] * inner, axis=0)


def edge_flow_arguments():
    rng = np.random.default_rng(9071)
    right = rng.standard_normal((12, 25))
    lean = rng.uniform(0.4, 0.9, (12, 1))
    down = lean * right + 4e-4 * rng.standard_normal((12, 25))
    down, right = down.astype(np.float32), right.astype(np.float32)
    flow = rng.uniform(-1, 1, (12, 2, 1))
    change = -(flow[:, 0] * right + flow[:, 1] * down.astype(np.float64))
    return down, right, change.astype(np.float32)


@fault("cancellation", "singular", policy="fp32")
@source("the aperture problem; normal equations square the condition")
@inputs(by=edge_flow_arguments)
def d_flow_along_a_straight_edge(down, right, change):
    """Lucas and Kanade's flow in windows that hold one straight edge."""
    xx = jnp.sum(right * right, axis=-1)
    yy = jnp.sum(down * down, axis=-1)  # -
    xy = jnp.sum(right * down, axis=-1)  # -
    tx, ty = jnp.sum(right * change, axis=-1), jnp.sum(down * change, axis=-1)  # -
    det = xx * yy - xy * xy  # fault
    u = (xy * ty - yy * tx) / det  # -
    v = (xy * tx - xx * ty) / det  # -
    # + slope = jnp.sum(right * down, axis=-1) / xx
    # + rest = down - slope[:, None] * right
    # + along = jnp.sum(right * change, axis=-1) / xx
    # + across = change - along[:, None] * right
    # + v = -jnp.sum(rest * across, axis=-1) / jnp.sum(rest * rest, axis=-1)
    # + u = -along - slope * v
    return jnp.stack([u, v], axis=-1)


@fault("coarse")
@source("SMPTE ST 2084 has a power of 78.8, which multiplies rounding errors")
@inputs(
    "in: 16x24 w @9081, out: 24x3 w",
    lambda: np.exp(uniform(9083, 24, 16, low=0.0, high=8.5)).astype(np.float32),
)
def d_perceptual_quantizer_in_bf16(params, scene):
    """HDR10's perceptual curve on BF16 light, before a tone-mapping network."""
    light = (scene / 10000.0).astype(jnp.bfloat16)  # -
    # + light = scene / 10000.0
    p = light**0.1593017578125
    signal = ((0.8359375 + 18.8515625 * p) / (1 + 18.6875 * p)) ** 78.84375  # here
    signal = signal.astype(jnp.float32)  # -
    h = jax.nn.relu(signal @ params["in"])
    return signal, h @ params["out"]
