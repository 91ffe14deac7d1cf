"""A `neuron-ls` for harnesses: it lists one emulated device with one core.

Harnesses distribute work over the listed cores; emulated kernels share the host's
cores, so one is listed. Nothing of the package is imported, see `neuron_profile`.
"""

import json
import sys

# The names of `neuron-ls --json-output` (tools/neuron-sys-tools/neuron-ls.rst), and
# "emulated".
DEVICES = [{"neuron_device": 0, "nc_count": 1, "neuroncore_ids": [0], "emulated": True}]


def main() -> int:
    """Print the devices: as JSON with --json-output or -j, else one per line."""
    if {"--json-output", "-j"} & set(sys.argv[1:]):
        print(json.dumps(DEVICES))
        return 0
    for device in DEVICES:
        print(*(f"{name}={value}" for name, value in device.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
