"""Faults planted in the simulator itself: the positive control of what it promises the checks of the product."""

from __future__ import annotations

from tests.mutants.model import Mutant

_KERNEL = "tests/simulation/kernel.py"
_NETWORK = "tests/simulation/network.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "clock-jumps-over-events",
        "A thread that sleeps keeps control only if nothing happens anywhere until it goes on.",
        _KERNEL,
        " or (events and events[0][0] <= deadline):",
        ":",
        ("unit/test_simulation_kernel.py::test_a_thread_that_sleeps_alone_keeps_control_and_passes_over_nothing",),
    ),
    Mutant(
        "clock-runs-backwards",
        "An event that time has passed by is reported: a jump of the clock has gone over it.",
        _KERNEL,
        "                if when < self.now:\n",
        "                if False:\n",
        ("unit/test_simulation_kernel.py::test_an_event_that_time_has_passed_is_reported",),
    ),
    Mutant(
        "stopped-process-sleeps-on",
        "A process that is stopped does not go on at the end of a sleep.",
        _KERNEL,
        "        if not process.is_idle():\n            return False\n",
        "",
        ("unit/test_simulation_kernel.py::test_a_process_that_is_stopped_in_a_thread_does_not_go_on_after_its_sleep",),
    ),
    Mutant(
        "clock-jumps-beyond-the-end",
        "Time passes only up to the end of a run.",
        _KERNEL,
        "if not self.now <= deadline <= self._until or",
        "if not self.now <= deadline or",
        ("unit/test_simulation_kernel.py::test_a_thread_that_sleeps_alone_keeps_control_and_passes_over_nothing",),
    ),
    Mutant(
        "reply-does-not-wake-a-thread",
        "A reply of a modelled server wakes the loop that waits for it, also one that runs in a thread.",
        _KERNEL,
        "        if self.kernel.current is not self.process:\n            self._write_to_self()\n",
        "        if self.driven and self.kernel.current is not self.process:\n            self._write_to_self()\n",
        ("unit/test_simulation_kernel.py::test_a_reply_wakes_a_loop_at_once_also_one_that_runs_in_a_thread",),
    ),
    Mutant(
        "read-of-no-bytes-waits",
        "A read of no bytes, as of an empty blob, returns at once.",
        _NETWORK,
        '        if not size:\n            return b""\n',
        "",
        ("unit/test_simulation_network.py::test_no_bytes_are_received_and_sent_without_a_wait",),
    ),
    Mutant(
        "slot-of-a-job-by-its-request-alone",
        "A check knows the slot that a job has accepted from a second one for the same request.",
        "tests/simulation/cluster_checks.py",
        "    return held is not None and held.slot.slot_id == allocation.slot_id\n",
        "    return held is not None\n",
        (
            "unit/test_simulation_parts.py::"
            "test_a_job_that_gets_a_second_slot_for_its_request_has_accepted_the_first_only",
        ),
    ),
)
