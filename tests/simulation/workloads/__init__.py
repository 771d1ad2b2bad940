"""What runs under simulation: each module builds real components of the product over the simulated world."""

from __future__ import annotations

from tests.simulation.workloads.blobs import Blobs
from tests.simulation.workloads.cluster import Cluster
from tests.simulation.workloads.ha import Ha
from tests.simulation.workloads.streaming import Streaming
from tests.simulation.workloads.supervision import Supervision
from tests.simulation.workloads.upgrade import Upgrade
from tests.simulation.world import Workload

_ALL: tuple[type[Workload], ...] = (Ha, Cluster, Streaming, Supervision, Blobs, Upgrade)
WORKLOADS = {workload.name: workload for workload in _ALL}
