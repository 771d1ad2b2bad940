"""Guards that only a running cluster shows, with Spark or without: the long form."""

from __future__ import annotations

from tests.mutants.model import Mutant

_NO_PORT = "integration/test_security.py::test_no_port_serves_who_has_shown_nothing"
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
        "signal-to-whoever-has-the-number",
        "A signal reaches the process that is meant, or none.",
        "runtime/process_signals.py",
        "            if not is_meant():\n",
        "            if is_meant() is None:\n",
        (
            "unit/test_process_signals.py::test_it_is_sent_to_the_process_that_is_meant",
            "unit/test_process_signals.py"
            "::test_a_sweep_spares_a_process_that_has_got_the_number_of_one_of_the_clusters",
        ),
    ),
    Mutant(
        "job-master-started-by-a-master-that-stops",
        "A master that stops starts no JobMaster.",
        "runtime/cluster/master.py",
        "                self._check_runs()\n                spec = ",
        "                spec = ",
        (
            "unit/test_stopping_master.py::test_a_stopping_master_starts_no_job_master_and_no_worker",
            "unit/test_stopping_master.py::"
            "test_a_job_master_whose_start_waits_for_its_stop_is_not_started_when_the_master_stops",
        ),
    ),
    Mutant(
        "job-masters-stopped-one-after-the-other",
        "A stop of many jobs waits once for a Redis that does not answer.",
        "runtime/cluster/master.py",
        "self._stop_with_others if name.startswith(JOB_MASTER) else self._stop_actor",
        "self._stop_actor",
        ("unit/test_stopping_master.py::test_the_job_masters_stop_together_and_before_the_components",),
    ),
    Mutant(
        "figure-of-one-of-several-queues",
        "Queues whose names look alike to Prometheus have no metric that is the figure of one of them.",
        "runtime/metrics/prometheus.py",
        "            if uses[name] > 1:\n                continue\n",
        "",
        (
            "contract/test_metric_query_service.py::"
            "test_queues_whose_names_differ_in_punctuation_are_told_apart_by_prometheus",
        ),
    ),
    Mutant(
        "operators-that-look-alike-have-one-id",
        "Operators whose names differ in separators have metrics of their own by HTTP.",
        "runtime/metrics/store.py",
        '    if filtered == name and not _NUMBERED.fullmatch(name[-9:]):\n        return f"{name}."\n',
        '    if filtered:\n        return f"{filtered}."\n',
        ("unit/test_rest_metrics.py::test_operators_whose_names_look_alike_have_ids_of_their_own",),
    ),
    Mutant(
        "unknown-actor-waited-for",
        "An actor that no master lists is unknown soon.",
        "runtime/client.py",
        "            self._unlisted(name, error)\n",
        "            pass\n",
        ("unit/test_client_unknown_actors.py::test_a_name_that_no_master_lists_is_unknown_soon_with_a_remedy",),
    ),
    Mutant(
        "actor-that-was-there-is-unknown-while-it-is-restarted",
        "A client waits for an actor that it has found before.",
        "runtime/client.py",
        "        self._found.add(name)\n",
        "",
        ("unit/test_client_unknown_actors.py::test_an_actor_that_was_there_is_waited_for_while_it_is_restarted",),
    ),
    Mutant(
        "keys-of-a-cluster-left-in-a-busy-redis",
        "The keys of a cluster are removed from a Redis that does not answer at once.",
        "runtime/ha/services.py",
        "            patience_s=patience_s,\n",
        "            patience_s=0.0,\n",
        ("unit/test_forgetting_jobs.py::test_keys_are_removed_from_a_redis_that_answers_again",),
    ),
    Mutant(
        "jobs-not-forgotten-by-the-master-are-not-forgotten-by-stop",
        "A master that could not remove the jobs from Redis leaves that to `understudy stop`.",
        "runtime/cluster/master.py",
        "        if not (is_forgotten or self.is_own):\n            return\n",
        "",
        ("unit/test_forgetting_jobs.py::test_a_master_that_could_not_remove_the_keys_leaves_that_to_the_stop",),
    ),
    Mutant(
        "jobs-forgotten-at-a-reboot",
        "Jobs outlive the only master of a session cluster that gets SIGTERM.",
        "runtime/cluster/master.py",
        "            if self._ends_cluster or not self._is_outlived_by_jobs():\n",
        "            if True:\n",
        ("faults/test_masters.py::test_jobs_outlive_the_only_master_that_is_told_to_end",),
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
    Mutant(
        "callbacks-of-strangers",
        "What the JVM may call in a task asks for the task's secret.",
        "runtime/spark/task/classic.py",
        "    gateway.callback_server_parameters.auth_token = secret\n    module: Any",
        "    return\n    module: Any",
        (_NO_PORT,),
        long=True,
    ),
    Mutant(
        "connect-without-token",
        "Spark Connect asks for its token.",
        "runtime/spark/driver/launch.py",
        '            "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,\n',
        "",
        (_NO_PORT,),
        long=True,
    ),
    Mutant(
        "master-ends-the-cluster-of-one-that-joins",
        "A master that is told to end leaves the cluster to one that is only joining.",
        "runtime/cluster/master.py",
        "            is_last = self._lock.leave() and may_end\n",
        "            self._lock.leave()\n            is_last = may_end\n",
        ("faults/test_start_stop.py::test_a_master_that_is_told_to_end_while_another_joins_leaves_it_the_jobs",),
        long=True,
    ),
    Mutant(
        "start-that-fails-forgets-the-jobs",
        "A start that fails keeps the jobs that a killed cluster left.",
        "runtime/cluster/session.py",
        "            if self.found is None:\n                self.directory.clean()\n",
        "            self.directory.discard()\n            if self.found is None:\n"
        "                self.directory.clean()\n",
        ("faults/test_start_stop.py::test_a_start_that_fails_keeps_the_jobs_of_a_killed_cluster",),
        long=True,
    ),
    Mutant(
        "start-that-fails-takes-the-configuration-along",
        "A start that fails restores the configuration that a killed cluster left.",
        "runtime/cluster/session.py",
        "            if self.found is None:\n                self.directory.clean()\n",
        "            if True:\n                self.directory.clean()\n",
        ("faults/test_start_stop.py::test_a_start_that_fails_keeps_the_jobs_of_a_killed_cluster",),
        long=True,
    ),
    Mutant(
        "tasks-without-a-job-master-cancelled-at-once",
        "Tasks whose JobMaster is away go on for taskmanager.job-master.timeout.",
        "runtime/taskexecutor/endpoint.py",
        "        patience_s = self._configuration.get(TaskManagerOptions.JOB_MASTER_TIMEOUT)\n",
        "        patience_s = 0.0\n",
        ("faults/test_masters.py::test_tasks_without_a_job_master_are_cancelled_in_the_end",),
        long=True,
    ),
    Mutant(
        "successor-begins-the-job-anew",
        "The successor of a JobMaster knows what its predecessor had written down.",
        "runtime/jobmaster/endpoint.py",
        "            data = await self._ha.execution_store().find(self._job_id)\n",
        "            data = None\n",
        (
            "faults/test_kills.py::test_what_ends_while_the_job_master_is_away_is_not_run_again",
            "faults/test_masters.py::test_a_standby_takes_over_from_a_killed_master_and_no_job_notices",
        ),
        long=True,
    ),
)
