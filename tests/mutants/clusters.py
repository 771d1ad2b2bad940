"""Guards that only a running cluster shows, with Spark or without: the long form."""

from __future__ import annotations

from tests.mutants.model import Mutant

_STOOD_STILL = "faults/test_masters.py::test_a_master_that_stood_still_beyond_its_lease_is_refused_and_steps_down"

MUTANTS = (
    Mutant(
        "master-answers-after-its-standstill",
        "A master that stood still answers no question that lay in its sockets.",
        "runtime/leadership.py",
        "        if self._term is None or not self._election.has_leadership(self._term):\n            raise",
        "        if self._term is None:\n            raise",
        (_STOOD_STILL,),
        long=True,
    ),
    Mutant(
        "order-of-a-former-leader-carried-out",
        "Masters and TaskExecutors refuse the orders of former leaders.",
        "actors/rpc/fencing.py",
        "        if leadership.token < known:\n            raise",
        "        if False:\n            raise",
        (_STOOD_STILL,),
        long=True,
    ),
    Mutant(
        "jobs-of-a-stopped-cluster-recovered",
        "The jobs of a stopped cluster are over, also where its master could not forget them itself.",
        "runtime/cluster/session.py",
        "        _forget_jobs(directory, say)\n        _sweep(directory, told, say)\n        directory.clean()\n"
        "        if directory.checkpoints",
        "        _sweep(directory, told, say)\n        directory.clean()\n        if directory.checkpoints",
        ("faults/test_kills.py::test_stop_cleans_up_after_a_killed_master",),
        long=True,
    ),
    Mutant(
        "lease-kept-after-the-end-of-its-job",
        "The lease of a checkpointLocation is free with the end of its job.",
        "runtime/taskexecutor/task.py",
        "                await driver.unlock_files(self._attempt.attempt_id)\n",
        "",
        ("integration/test_streaming_queries.py::test_a_location_has_one_writer",),
        long=True,
    ),
)
