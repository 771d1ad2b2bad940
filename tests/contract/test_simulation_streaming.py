"""Plans of the workload `streaming` that once found a defect of the simulator."""

from __future__ import annotations

from tests.simulation.alone import alone
from tests.simulation.faults import Fault
from tests.simulation.workloads.streaming import Streaming
from tests.simulation.world import run


@alone
def test_a_leader_that_is_lost_after_it_has_recorded_the_end_leaves_the_rest_to_the_next() -> None:
    # The model of the JobMaster forgot such a job, and it never ended.
    lost = [Fault(round(8.1 + 1.7 * i, 1), "location_lost", (f"line{1 + i % 2}",)) for i in range(10)]
    plan = [Fault(4.0, "redis_slow", (0.2, 22.0)), *lost]
    assert run(Streaming, 1, plan, faults_s=26.0).failure is None
