"""Plans of the workload supervision that once failed, and checks of it that find what they are for."""

from __future__ import annotations

import signal

from tests.simulation.alone import alone
from tests.simulation.faults import Fault
from tests.simulation.workloads.supervision import Supervision
from tests.simulation.world import run

HOST = "host1"


class KillsMastersAdmin(Supervision):
    """Kills the admin of the first master's actor system."""

    def victim(self, host: str, where: float, name: str = ""):  # type: ignore[no-untyped-def]
        masters = [entry for entry in self.system.running() if entry.sim.name == "entrypoint"]
        return next(child for child in masters[0].children if child.sim.name == "admin")


@alone
def test_a_cluster_whose_master_lost_its_actor_system_is_taken_over_by_another_master() -> None:
    plan = [
        Fault(0.1, "command", (HOST, "start")),
        Fault(15.0, "command", (HOST, "submit")),
        Fault(20.0, "signal", (HOST, 0.0, int(signal.SIGKILL))),
    ]
    outcome = run(KillsMastersAdmin, 7, plan, faults_s=22.0)
    assert outcome.failure is None, outcome.failure
    assert outcome.counts["verified after: start-master"] == outcome.counts["jobs verified"] == 1


@alone
def test_a_cluster_whose_start_was_cut_off_by_a_loss_of_power_is_started_again() -> None:
    """The seed 31: `start-master` said that a component could not be started."""
    plan = [Fault(0.1, "command", (HOST, "start")), Fault(0.3, "power_loss", (HOST, 0.5, "nothing"))]
    outcome = run(Supervision, 31, plan, faults_s=2.0)
    assert outcome.failure is None, outcome.failure
    assert outcome.counts["verified after: start"] == 1
