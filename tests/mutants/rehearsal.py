"""Faults of `job upgrade --shadow`, each with the unit tests that have to find it."""

from __future__ import annotations

from tests.mutants.model import Mutant

_SHADOW = "runtime/cluster/job_shadow.py"
_TASK = "runtime/spark/task/rehearsal.py"
_RULES = "runtime/checkpoint/rehearsal.py"
_TESTS = "unit/test_job_shadow.py::"

MUTANTS = (
    Mutant(
        "rehearsal-reaches-the-sink-of-a-table",
        "No query of a rehearsal writes to its sink.",
        _TASK,
        '        for method in ("start", "toTable"):\n',
        '        for method in ("start",):\n',
        (f"{_TESTS}test_no_query_of_the_task_reaches_its_sink",),
    ),
    Mutant(
        "rehearsal-calls-a-function-that-knows-no-colour",
        "A function of foreachBatch that does not know its colour is not called: it may write to the real sink.",
        _RULES,
        "        and found.default is None\n",
        "",
        (f"{_TESTS}test_a_function_takes_part_only_if_it_has_a_parameter_for_the_colour",),
    ),
    Mutant(
        "rehearsal-calls-a-function-for-a-batch-of-its-own",
        "A function gets the planned batches only, and not one that a private copy runs by itself.",
        _TASK,
        "        if self._function is None or batch_id not in self._planned.batches:\n",
        "        if self._function is None:\n",
        (f"{_TESTS}test_a_function_gets_the_planned_batches_only",),
    ),
    Mutant(
        "rehearsal-reads-any-source",
        "The code of a rehearsal reads only sources that give the same rows again.",
        _TASK,
        "        if reason := source_refusal(kind):\n",
        '        if reason := "":\n',
        (f"{_TESTS}test_only_sources_whose_batches_can_be_repeated_are_read",),
    ),
    Mutant(
        "rehearsal-commits-to-a-python-source",
        "A Python data source that may remove its input with a commit is refused.",
        _TASK,
        "        sources.install(registration, _not_committing)\n",
        "        sources.install(registration)\n",
        (f"{_TESTS}test_only_sources_whose_batches_can_be_repeated_are_read",),
    ),
    Mutant(
        "rehearsal-removes-the-input",
        "A source of a rehearsal does not remove the files that the running job reads.",
        _TASK,
        "        if problem := source_problem(kind, {**settings_of(self), **keywords}):\n",
        '        if problem := "":\n',
        (f"{_TESTS}test_no_source_of_the_task_removes_its_files",),
    ),
    Mutant(
        "rehearsal-of-another-batch",
        "A batch that Spark has not repeated is an error.",
        _TASK,
        "            if last != batch_id:\n",
        "            if False:\n",
        (f"{_TESTS}test_a_batch_that_spark_does_not_repeat_is_an_error",),
    ),
    Mutant(
        "rehearsed-code-runs-on",
        "The code of a rehearsal ends with the start of its last query.",
        _TASK,
        "            sys.exit(0)\n",
        "            pass\n",
        (f"{_TESTS}test_the_code_ends_with_the_start_of_its_last_query",),
    ),
    Mutant(
        "rehearsal-of-a-pipeline",
        "A pipeline, whose queries cannot be diverted, is refused.",
        _SHADOW,
        "        if JobKind.PIPELINE in (blue.graph.kind, green.graph.kind):\n",
        "        if False:\n",
        (f"{_TESTS}test_refusals_start_nothing",),
    ),
    Mutant(
        "rehearsal-beside-an-upgrade",
        "A job is rehearsed only while nothing else changes it.",
        _SHADOW,
        "        with changing(lock, job_id):\n",
        "        with contextlib.nullcontext():\n",
        (f"{_TESTS}test_a_rehearsal_and_an_upgrade_of_one_job_exclude_each_other",),
    ),
    Mutant(
        "rehearsal-of-batches-that-were-rolled-back",
        "Batches that the job has run anew meanwhile are not compared.",
        _SHADOW,
        "                if now != (self.offsets(one) / str(batch_id)).read_bytes():\n",
        "                if False:\n",
        (f"{_TESTS}test_batches_that_were_rolled_back_meanwhile_are_not_compared",),
    ),
    Mutant(
        "jobs-of-a-killed-rehearsal-run-on",
        "The next rehearsal ends the jobs of one that was killed.",
        _SHADOW,
        "        for job_id in self._jobs():\n            end_job(self._client, JobID(job_id))\n",
        "",
        (f"{_TESTS}test_jobs_and_files_of_a_command_that_was_killed_are_removed_by_the_next",),
    ),
    Mutant(
        "rehearsal-copies-a-compacted-log-once",
        "A log of a source that Spark compacts at that moment is copied again.",
        _SHADOW,
        "            if attempt == _ATTEMPTS:\n",
        "            if True:\n",
        (f"{_TESTS}test_sources_whose_log_is_compacted_meanwhile_are_copied_again",),
    ),
    Mutant(
        "rehearsal-without-the-logs-of-remote-sources",
        "The logs of sources in a remote checkpointLocation are copied, too.",
        _SHADOW,
        "            remote.fetch(missing, listing, fetched, None)\n",
        "            missing = []\n",
        ("contract/test_remote_versions.py::test_both_versions_run_the_batches_of_a_job_with_a_remote_location",),
    ),
    Mutant(
        "batches-at-a-remote-location-unseen",
        "Batches that a new version has committed at a remote checkpointLocation count.",
        "runtime/checkpoint/snapshot.py",
        "    names = _remote_names if is_remote(location) else _local_names\n",
        "    names = _local_names\n",
        ("contract/test_remote_versions.py::test_the_first_batch_of_an_upgraded_job_is_seen_at_its_remote_location",),
    ),
    Mutant(
        "rehearsal-of-a-batch-that-runs",
        "Only batches that the job has committed are repeated.",
        _RULES,
        "    if any(query.planned > query.committed for query in found):\n        return False\n",
        "",
        (f"{_TESTS}test_batches_are_waited_for_while_the_job_commits_some",),
    ),
    Mutant(
        "rehearsal-equal-with-other-rows",
        "Rows of the same number and other contents are a difference.",
        _RULES,
        "        return (self.rows, self.digest) == (other.rows, other.digest)\n",
        "        return self.rows == other.rows\n",
        (f"{_TESTS}test_a_new_version_that_differs_or_fails_is_reported",),
    ),
)
