"""New versions of a running job that are rehearsed: their rows are compared, and nothing of the job changes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from runtime.checkpoint.compatibility import Verdict
from runtime.checkpoint.rehearsal import StartedQuery
from runtime.cluster.job_shadow import JobRehearser
from runtime.cluster.job_upgrade import Version, new_version
from runtime.ids import JobID
from tests.cluster_harness import Cluster, await_value
from tests.integration.test_upgraded_jobs import Stream, fits
from tests.json_output import parsed


def shadow_of(stream: Stream) -> Path:
    return stream.kept.with_suffix(".shadow")


def fed(stream: Stream, version: Version, state: Path) -> tuple[list[Verdict], list[StartedQuery]]:
    """Write rows for the batches to rehearse: the savepoint has been taken. Spare the Spark of the check."""
    assert shadow_of(stream) in state.parents
    stream.source.write(2)
    return fits(version, state), [StartedQuery("counts", "foreachbatch", "repeated", ("file",))]


def test_both_versions_run_the_same_batches_and_neither_the_job_nor_its_sink_notices(
    cluster: Cluster, tmp_path: Path
) -> None:
    stream = Stream(cluster, tmp_path)
    mark = tmp_path / "called"
    rewritten = stream.file("blue-rewritten", key="concat(key, '')")
    code = rewritten.read_text().replace("'blue-rewritten' AS version", "'blue' AS version")
    rewritten.write_text(
        code.replace(
            "writer.trigger(", f"writer = writer.foreachBatch(lambda *_: open({str(mark)!r}, 'w'))\nwriter.trigger("
        )
    )
    with cluster.client() as client:
        rehearser = JobRehearser(
            client, cluster.directory / "savepoints", lambda version, state: fed(stream, version, state)
        )
        same = rehearser.rehearse(JobID(stream.job_id), new_version(rewritten, (), None, (), str), 2)
    [query] = same.queries
    assert (same.is_equal, same.failure, query.problems) == (True, "", ())
    assert len(query.batches) == 2
    assert sum(batch.rows for batch in query.batches) > 0
    assert not mark.exists()

    changed = stream.file("green", key="if(key = 'key-3', 'a-key', key)")
    found = by_command(stream, "--batches", "2", stream.job_id, str(changed))
    [query] = found["queries"]
    assert (found["is_equal"], query["is_equal"]) == (False, False)
    [problem] = query["problems"]
    assert problem.startswith("the state of operator 0 has the same number of keys")
    different = [batch for batch in query["batches"] if batch["rows"]]
    assert different
    for batch in different:
        assert batch["rows"] == batch["new_rows"] == batch["only_present"] == batch["only_new"]
        assert all('"version":"blue"' in row for row in batch["present_samples"])
        assert all('"version":"green"' in row for row in batch["new_samples"])

    assert not shadow_of(stream).exists()
    job = cluster.job(stream.job_id)
    assert (job["state"], [len(task["attempts"]) for task in job["tasks"]]) == ("RUNNING", [1])
    assert stream.end(stream.job_id).keys() == {"blue"}


def by_command(stream: Stream, *words: str) -> Any:
    """Rehearse by the command line, which finds that the versions differ."""
    command = stream.cluster.command("job", "upgrade", "--shadow", "--json", *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        await_value(lambda: process.poll() is not None or (shadow_of(stream) / "offsets").exists())
        stream.source.write(2)
        out, errors = process.communicate()
    assert process.returncode == 1, errors
    return parsed(("job", "upgrade"), out)
