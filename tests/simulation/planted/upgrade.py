"""Faults planted for the workload `upgrade`: what two releases in one cluster rely on."""

from __future__ import annotations

from tests.mutants.model import Mutant

FROM_CATALOGUE: tuple[str, ...] = (
    "unsupported-level-taken",
    "level-of-the-release-written",
    "level-raised-over-an-old-component",
    "masters-of-other-hosts-not-asked",
    "task-executor-below-the-level-admitted",
)

OWN: tuple[Mutant, ...] = (
    Mutant(
        "job-graph-in-the-newest-format",
        "A Dispatcher stores job graphs in the format of the cluster's level, which the former release reads.",
        "runtime/dispatcher/endpoint.py",
        "        return encode(self._level.marked(graph, Format.JOB_GRAPH))\n",
        "        return encode(FeatureLevel(supported_levels().newest).marked(graph, Format.JOB_GRAPH))\n",
        (),
    ),
    Mutant(
        "execution-in-the-newest-format",
        "A JobMaster stores the progress of its job in the format of the cluster's level.",
        "runtime/jobmaster/endpoint.py",
        "        return encode(self._level.marked(saved, Format.EXECUTION))\n",
        "        return encode(checked(own_release().levels.newest).marked(saved, Format.EXECUTION))\n",
        (),
    ),
    Mutant(
        "task-executors-not-asked",
        "The level is raised only if all registered TaskExecutors support it.",
        "runtime/dispatcher/endpoint.py",
        "            *(view.registration.component for view in workers),\n",
        "",
        (),
    ),
    Mutant(
        "level-not-read-once-listed",
        "A master that was not listed while the level was raised reads it once it is listed again, and ends.",
        "runtime/ha/masters.py",
        "            await self._level.current()\n",
        "            pass\n",
        ("contract/test_dispatcher_feature_level.py::test_a_master_that_missed_a_higher_level_is_refused",),
    ),
    Mutant(
        "job-that-is-over-led-again",
        "A JobMaster whose job is over does not lead: nobody asks it for its release, and its master may stand still.",
        "runtime/jobmaster/endpoint.py",
        "            await self._election.stop()  # there is nothing to lead",
        "            # there is nothing to lead",
        ("unit/test_job_master_lead.py::test_a_job_that_is_over_is_not_run_again_also_when_its_graph_is_gone",),
    ),
)
