"""Guards of where a cluster runs: pods of Kubernetes, one application, a program's own Spark driver, control groups."""

from __future__ import annotations

from tests.mutants.model import Mutant

_CLIENT = "runtime/kubernetes/client.py"
_CONTAINER = "runtime/cluster/container.py"
_DRIVER = "runtime/kubernetes/driver.py"
_POD = "runtime/kubernetes/pod.py"
_DRIVERS = "contract/test_resource_manager_drivers.py"
_BOOK = "runtime/application/state.py"
_BOOTSTRAP = "runtime/cluster/application_bootstrap.py"
_PROGRAM = "runtime/embedded/program.py"
_GUARD = "runtime/embedded/guard.py"
_GROUPS = "runtime/taskexecutor/control_groups.py"

MUTANTS = (
    # ------------------------------------------------------------------ Kubernetes
    Mutant(
        "program-not-synced",
        "The files of a stored program survive a loss of power.",
        "runtime/application/program.py",
        "private_file(target) as writing",
        "private_file(target, durable=False) as writing",
        ("unit/test_application_book.py::test_a_stored_program_and_all_its_files_survive_a_loss_of_power",),
    ),
    Mutant(
        "pod-that-is-there-refused",
        "A pod whose creation is asked for again is not an error.",
        _CLIENT,
        "            if error.status == 409:",
        "            if error.status == 0:",
        (f"{_DRIVERS}::test_a_pod_whose_creation_is_in_doubt_is_there_once",),
    ),
    Mutant(
        "created-pod-taken-for-deleted",
        "A pod that is created while the pods are listed has not ended.",
        _DRIVER,
        "known = set(self._pods) - set(self._creating)",
        "known = set(self._pods)",
        (f"{_DRIVERS}::test_a_pod_created_while_the_pods_are_listed_once_more_has_not_ended",),
    ),
    Mutant(
        "pod-template-unchecked",
        "A pod template with a part of the wrong form is refused.",
        _POD,
        "        elif not isinstance(values[key], type_):\n",
        "        elif False:\n",
        (
            "unit/test_kubernetes_manifests.py"
            "::test_a_pod_template_that_is_no_pod_inside_is_refused_with_the_part_that_is_wrong",
        ),
    ),
    Mutant(
        "release-in-doubt-forgotten",
        "A pod whose deletion was not answered can be released again.",
        _DRIVER,
        "                self._pods[resource_id] = trouble\n",
        "                pass\n",
        (f"{_DRIVERS}::test_a_pod_whose_creation_is_in_doubt_is_there_once",),
    ),
    Mutant(
        "pod-of-others-deleted",
        "Pods of others are left alone.",
        _DRIVER,
        "        if resource_id not in self._pods:\n            return False\n"
        "        trouble = self._pods.pop(resource_id)\n",
        '        trouble = self._pods.pop(resource_id, "")\n',
        (
            f"{_DRIVERS}::test_pods_of_others_are_left_alone_and_ended_ones_are_swept",
            f"{_DRIVERS}::test_workers_are_started_told_when_they_end_and_stopped",
        ),
    ),
    Mutant(
        "end-of-a-released-pod-told",
        "The end of a pod that was released is not a loss of a worker.",
        _DRIVER,
        "        if name in self._released:\n            if is_deleted:\n                self._released.discard(name)\n"
        "            return\n",
        "",
        (f"{_DRIVERS}::test_a_released_pod_that_takes_its_time_is_no_worker_any_more",),
    ),
    Mutant(
        "pod-found-by-other-labels",
        "No template or option takes away the labels by which a cluster's pods are found again.",
        _POD,
        '        **metadata.get("labels", {}),\n'
        "        **_pairs(configuration, KubernetesOptions.LABELS),\n"
        "        **worker_labels(configuration),\n",
        "        **worker_labels(configuration),\n"
        '        **metadata.get("labels", {}),\n'
        "        **_pairs(configuration, KubernetesOptions.LABELS),\n",
        (f"{_DRIVERS}::test_no_setting_takes_away_what_pods_are_found_by_or_kept_apart",),
    ),
    Mutant(
        "pod-started-again-by-the-kubelet",
        "Whether a worker is needed again is the ResourceManager's to say.",
        _POD,
        'spec["restartPolicy"] = "Never"',
        'spec.setdefault("restartPolicy", "Never")',
        (f"{_DRIVERS}::test_no_setting_takes_away_what_pods_are_found_by_or_kept_apart",),
    ),
    Mutant(
        "pod-with-rights-at-the-api-server",
        "A worker's pod has no token of the API server's.",
        _POD,
        '    spec.setdefault("automountServiceAccountToken", False)\n',
        "",
        (f"{_DRIVERS}::test_a_pod_is_the_template_with_what_the_options_say",),
    ),
    Mutant(
        "pods-outlive-their-deployment",
        "The pods go with the deployment that owns them.",
        _POD,
        "    if owner is not None:\n",
        "    if False:\n",
        (f"{_DRIVERS}::test_a_pod_is_the_template_with_what_the_options_say",),
    ),
    Mutant(
        "mounted-secret-readable-by-its-group",
        "The secret of a pod has mode 0600, whatever that of the mounted file is.",
        _CONTAINER,
        "write_private(configuration.get(SecurityOptions.SECRET_FILE), mounted.read_bytes())",
        "configuration.get(SecurityOptions.SECRET_FILE).write_bytes(mounted.read_bytes())",
        ("unit/test_kubernetes_manifests.py::test_a_container_makes_its_directory_and_becomes_its_process",),
    ),
    Mutant(
        "pods-without-a-common-redis",
        "Pods that could not share a Redis do not start.",
        _CONTAINER,
        "    if configuration.get(HighAvailabilityOptions.REDIS_URL) is None:\n",
        "    if False:\n",
        ("unit/test_kubernetes_manifests.py::test_what_a_container_lacks_is_said",),
    ),
    # ------------------------------------------------------------------ one application
    Mutant(
        "main-run-again-for-ever",
        "A main() that is lost each time is run again a limited number of times.",
        _BOOK,
        "(is_lost and self._losses <= MAX_LOSSES)",
        "is_lost",
        ("unit/test_application_book.py::test_a_lost_main_is_run_again_while_its_jobs_go_on_but_not_for_ever",),
    ),
    Mutant(
        "main-of-a-cancelled-application-run",
        "A cancelled application does not run its main() any more.",
        _BOOK,
        "        if not self._is_cancelled and (self._end is None",
        "        if (self._end is None",
        (
            "unit/test_application_book.py::test_an_application_that_is_cancelled_before_main_or_after_it_does_not_run_it",
        ),
    ),
    Mutant(
        "jobs-of-a-failed-main-left",
        "The jobs of a main() that failed are cancelled.",
        _BOOK,
        "return Wait() if has_finished and not self._is_cancelled else CancelJobs(going)",
        "return Wait()",
        (
            "unit/test_application_book.py::test_jobs_that_go_on_are_waited_for_after_main_and_cancelled_when_it_failed",
            "unit/test_application_book.py::test_a_cancelled_application_ends_main_then_its_jobs",
        ),
    ),
    Mutant(
        "job-of-a-former-run-submitted-again",
        "A main() that is run again finds the jobs that it has executed.",
        "runtime/application/client.py",
        "            self._insist(lambda: self._client.status_of(graph.job_id))\n        except",
        '            raise JobNotFoundError("")\n        except',
        ("unit/test_application_client.py::test_a_job_is_submitted_once_however_often_main_is_run",),
    ),
    Mutant(
        "ids-of-executes-not-counted",
        "Two executes of one name are two jobs.",
        _BOOK,
        "self._counts.get(name, 0) + 1",
        "1",
        ("unit/test_application_book.py::test_the_nth_execute_of_a_name_has_the_same_id_in_every_run_of_main",),
    ),
    Mutant(
        "application-run-again-after-its-result",
        "An application whose result is written down is not run again.",
        _BOOTSTRAP,
        "        if result is None:\n            result = self._to_its_end()\n",
        "        if True:\n            result = self._to_its_end()\n",
        ("contract/test_application_bootstrap.py::test_an_application_that_is_over_is_not_run_again",),
    ),
    Mutant(
        "main-without-the-limits-of-a-task",
        "The main() of an application has the limits of a task.",
        "runtime/application/main.py",
        "    impose(limits)\n",
        "",
        ("contract/test_application_main.py::test_how_main_ended_is_told",),
    ),
    # ------------------------------------------------------------------ a program's own Spark driver
    Mutant(
        "socket-of-a-program-for-everybody",
        "The socket by which a program takes its task is its user's alone.",
        _PROGRAM,
        "        path.chmod(0o600)\n",
        "",
        ("unit/test_embedded.py::test_a_program_takes_its_task_and_says_when_it_needs_it_no_longer",),
    ),
    Mutant(
        "lease-of-a-running-query-not-taken-anew",
        "A TaskExecutor that comes later takes the leases of the queries that run.",
        _PROGRAM,
        "                self.acquire_lease(known.query.location, is_running=True)\n",
        "                pass\n",
        ("unit/test_embedded.py::test_a_new_task_executor_is_told_of_queries_and_answers_for_leases",),
    ),
    Mutant(
        "refused-lease-taken",
        "A query does not start where another job writes.",
        "runtime/spark/task/control.py",
        "            raise LocationInUseError(answer.error)\n",
        "            return\n",
        ("unit/test_embedded.py::test_a_new_task_executor_is_told_of_queries_and_answers_for_leases",),
    ),
    Mutant(
        "error-that-is-no-utf8-kills-the-task",
        "A task tells its failure whichever characters its error has.",
        "runtime/spark/task/control.py",
        '    return _clip(text.encode(errors="backslashreplace").decode())\n',
        "    return _clip(text)\n",
        ("unit/test_spark_tracebacks.py::test_texts_that_utf8_cannot_encode_travel",),
    ),
    Mutant(
        "queries-of-a-cancelled-program-left",
        "The queries of a cancelled program end before it says that it is cancelled.",
        _PROGRAM,
        "        self._on_cancel()\n",
        "",
        ("unit/test_embedded.py::test_a_cancelled_program_ends_its_queries_and_lives",),
    ),
    Mutant(
        "directory-of-an-embedded-cluster-left",
        "Of an embedded cluster nothing is left.",
        _GUARD,
        "        shutil.rmtree(root, ignore_errors=True)\n",
        "        pass\n",
        ("unit/test_embedded.py::test_the_guard_leaves_nothing",),
    ),
    # ------------------------------------------------------------------ control groups
    Mutant(
        "control-group-without-its-limit",
        "What all processes of a task take together is bounded.",
        _GROUPS,
        "                        (directory / file).write_text(value)\n",
        "                        pass\n",
        (
            "contract/test_control_groups.py::test_what_all_processes_of_a_group_take_together_is_bounded",
            "contract/test_control_groups.py::test_a_group_gets_no_more_processor_than_its_limit",
        ),
    ),
    Mutant(
        "processes-left-in-a-control-group",
        "What runs on in the group of a task ends with it.",
        _GROUPS,
        "                    signal_process(int(pid), signal.SIGKILL, functools.partial(_contains, directory, pid))\n",
        "                    pass\n",
        ("contract/test_control_groups.py::test_what_runs_on_in_a_group_ends_with_it",),
    ),
    Mutant(
        "groups-of-a-killed-task-executor-left",
        "What a killed TaskExecutor left is removed by the next one of its name.",
        _GROUPS,
        "        groups._remove_left(adopted)\n",
        "",
        ("contract/test_control_groups.py::test_what_a_killed_task_executor_left_is_removed_by_the_next_of_its_name",),
    ),
    Mutant(
        "groups-of-another-task-executor-removed",
        "A TaskExecutor removes no group of another one.",
        _GROUPS,
        'tree.group.glob(f"{self._prefix}*")',
        'tree.group.glob("task-*")',
        ("contract/test_control_groups.py::test_what_a_killed_task_executor_left_is_removed_by_the_next_of_its_name",),
    ),
    Mutant(
        "limit-of-control-groups-ignored",
        "A limit that no control group could hold is an error at the start.",
        _GROUPS,
        "    if limits.controllers:\n        raise ControlGroupError(\n",
        "    if False:\n        raise ControlGroupError(\n",
        (
            "contract/test_control_groups.py::"
            "test_a_group_that_is_not_there_cannot_be_used_or_lacks_a_limit_is_said_at_once",
        ),
    ),
    Mutant(
        "task-outside-of-its-control-group",
        "A task that cannot enter its control group does not run.",
        "runtime/spark/task/program.py",
        '            Path(entry).write_text("0")\n',
        "            pass\n",
        ("contract/test_control_groups.py::test_a_group_that_cannot_be_entered_is_an_error_of_the_task",),
    ),
)
