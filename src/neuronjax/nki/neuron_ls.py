"""`neuron-ls`, as far as harnesses call it: one emulated device with one core.

Harnesses share their work out over the cores that it lists; emulated kernels share the
host's, so there is one. Nothing of the package is imported, see `neuron_profile`.
"""

import json
import sys

# Names of `neuron-ls --json-output` (tools/neuron-sys-tools/neuron-ls.rst), and one.
DEVICES = [
    {"neuron_device": 0, "nc_count": 1, "neuroncore_ids": [0], "emulated": True},
]


def main() -> int:
    """Prints the devices: as JSON if asked, else one a line."""
    if {"--json-output", "-j"} & set(sys.argv[1:]):
        print(json.dumps(DEVICES))
        return 0
    for device in DEVICES:
        print(*(f"{name}={value}" for name, value in device.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
