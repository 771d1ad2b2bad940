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
        "rehearsal-removes-the-input",
        "A source of a rehearsal does not remove the files that the running job reads.",
        _TASK,
        "        if removes_files({**settings_of(self), **keywords}):\n",
        "        if False:\n",
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
        "rehearsal-of-a-remote-location",
        "A checkpointLocation that is no directory of this machine is refused.",
        _SHADOW,
        '    if "://" in location:\n',
        "    if False:\n",
        (f"{_TESTS}test_a_location_that_is_no_directory_is_refused",),
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
