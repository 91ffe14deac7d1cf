"""Sums over ranks, as a JAX program on the vendor's plugin."""

# pyright: reportMissingParameterType=false, reportMissingImports=false


def all_reduce(x, ranks):
    """x [ranks, n]: every rank's row replaced by the sum of all; row 0 comes back."""
    import jax

    devices = jax.devices()
    if devices[0].platform in ("cpu", "gpu"):
        raise RuntimeError("JAX finds no Neuron device: install jax-neuronx")
    if len(devices) < ranks:
        raise RuntimeError(f"{len(devices)} NeuronCores, {ranks} needed")
    summed = jax.pmap(
        lambda row: jax.lax.psum(row, "ranks"),
        axis_name="ranks",
        devices=devices[:ranks],
    )
    return summed(x)[0]
