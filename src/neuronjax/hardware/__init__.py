"""The machines as data: chips, instances, networks; and the names of targets.

`timing` models how long a machine takes.
"""

from neuronjax.hardware.capabilities import (
    CAPABILITIES as CAPABILITIES,
    chips_that_take as chips_that_take,
    chips_with as chips_with,
    chips_with_engine as chips_with_engine,
)
from neuronjax.hardware.chips import (
    CHIP_ALIASES as CHIP_ALIASES,
    CHIPS as CHIPS,
    EMULATOR_ONLY_DTYPES as EMULATOR_ONLY_DTYPES,
    ByDtype as ByDtype,
    ChipSpec as ChipSpec,
    CoreSpec as CoreSpec,
    EngineSpec as EngineSpec,
)
from neuronjax.hardware.instances import (
    INSTANCE_ALIASES as INSTANCE_ALIASES,
    INSTANCES as INSTANCES,
    InstanceSpec as InstanceSpec,
    ListPrice as ListPrice,
)
from neuronjax.hardware.target import (
    TARGETS as TARGETS,
    Target as Target,
    resolve_target as resolve_target,
)
from neuronjax.hardware.topology import (
    EFA as EFA,
    TOPOLOGIES as TOPOLOGIES,
    Fabric as Fabric,
    Link as Link,
    Topology as Topology,
)
