"""Links to Spark's own pages: only where they lead somewhere, and a readable note otherwise."""

from __future__ import annotations

import io
import os
import stat
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from conf.configuration import Configuration
from runtime.cluster.job_commands import _spark_rows
from runtime.cluster.views import AttemptInSpark, print_spark
from runtime.environment.descriptor import ProcessRecord
from runtime.environment.directory import ClusterDirectory
from runtime.protocol.descriptor import SparkWork
from runtime.protocol.execution_state import ExecutionState
from runtime.rest.forms import SPARK_WORK
from runtime.rest.handlers.jobs import spark_work
from runtime.rest.spark_links import HistoryState, SparkLink, attempts_of, command_for, link_of, look
from tests.unit.test_rest_messages import fits, graph

URL = "http://127.0.0.1:18080"
WORK = SparkWork("local-7", "SparkConnect_OperationTag_User_a b_Session_1&2_Operation_")
RUNS = HistoryState(URL, "understudy history-server", "/c/spark-events", frozenset({"local-7"}))


def test_a_link_leads_to_the_attempt_where_the_server_runs_and_has_its_log() -> None:
    link = link_of(WORK, RUNS)
    assert link.note == ""
    parts = urlsplit(link.url)
    assert (f"{parts.scheme}://{parts.netloc}", parts.path) == (URL, "/attempt")
    assert parse_qs(parts.query) == {"application": ["local-7"], "tag": [WORK.tag]}
    assert link_of(WORK, replace(RUNS, applications=None)) == link, "a directory elsewhere cannot be looked at"
    live = replace(RUNS, applications=frozenset(), live=frozenset({"local-7"}))
    assert link_of(WORK, live) == link, "a driver that serves its UI needs no event log"


@pytest.mark.parametrize(
    ("work", "state", "words"),
    [
        (None, RUNS, "no Spark application is known"),
        (WORK, replace(RUNS, applications=frozenset({"local-8"})), "no event log of local-7 is in /c/spark-events"),
        (WORK, replace(RUNS, applications=frozenset()), "taskmanager.spark.event-log.enabled"),
        (WORK, replace(RUNS, url=""), "run `understudy history-server` on the cluster's machine"),
        (WORK, replace(RUNS, url="", applications=None), "run `understudy history-server`"),
        (WORK, replace(RUNS, url="", applications=frozenset()), "no event log of local-7"),
    ],
)
def test_without_a_place_to_lead_to_there_is_a_note_and_no_link(
    work: SparkWork | None, state: HistoryState, words: str
) -> None:
    link = link_of(work, state)
    assert link.url == ""
    assert words in link.note
    assert "\n" not in link.note


def test_the_answer_names_every_attempt_its_application_and_its_link() -> None:
    made = graph()
    first, second = made.tasks
    attempts = tuple(replace(attempt, spark=WORK) for attempt in first.attempts)
    told = spark_work(replace(made, tasks=(replace(first, attempts=attempts), second)), RUNS)
    fits(told, SPARK_WORK)
    assert told["history-server"] == {"url": URL, "command": "understudy history-server"}
    rows = [(row["task"], row["attempt"], row["status"], row["application"], row["tag"]) for row in told["attempts"]]
    assert rows == [
        ("read <img>", 1, ExecutionState.RUNNING.value, "local-7", WORK.tag),
        ("read <img>", 0, ExecutionState.FAILED.value, "local-7", WORK.tag),
        ("write", 0, ExecutionState.SCHEDULED.value, "", ""),
    ]
    assert [bool(row["url"]) for row in told["attempts"]] == [True, True, False]
    assert [bool(row["note"]) for row in told["attempts"]] == [False, False, True]
    assert [attempt.number for _, attempt in attempts_of(made)] == [1, 0, 0]


def configuration_of(directory: Path, **settings: str) -> Configuration:
    return Configuration.from_dict({"cluster.runtime-dir": str(directory), **settings})


def test_the_server_is_found_while_its_process_lives(tmp_path: Path) -> None:
    configuration = configuration_of(tmp_path)
    (tmp_path / "spark-events" / "eventlog_v2_local-7").mkdir(parents=True)
    (tmp_path / "spark-events" / "local-8.inprogress").touch()
    found = look(configuration)
    assert (found.url, found.logs) == ("", str(tmp_path / "spark-events"))
    assert found.applications == {"local-7", "local-8"}
    claim = ClusterDirectory(tmp_path).history_server_claim()
    assert claim.try_acquire()
    own = ProcessRecord.of("history-server", os.getpid())
    claim.note(own, URL)
    assert look(configuration).url == URL
    assert stat.S_IMODE(claim.path.stat().st_mode) == 0o600
    claim.note(replace(own, start_ticks=own.start_ticks + 1), URL)
    assert look(configuration).url == "", "another process has its number now"
    claim.note(own, URL)
    claim.forget()
    assert look(configuration).url == ""


def test_a_directory_of_another_file_system_is_not_looked_at(tmp_path: Path) -> None:
    found = look(configuration_of(tmp_path, **{"spark.eventLog.dir": "hdfs://n/logs"}))
    assert (found.logs, found.applications) == ("hdfs://n/logs", None)
    assert look(configuration_of(tmp_path)).applications == frozenset(), "there is no directory yet"


def test_the_command_names_another_directory_than_the_usual_one(tmp_path: Path) -> None:
    assert command_for(Configuration.from_dict({})) == "understudy history-server"
    directory = tmp_path / "a b"
    assert command_for(configuration_of(directory)) == f"understudy history-server -D cluster.runtime-dir='{directory}'"


def test_job_info_of_a_cluster_by_http_claims_nothing_of_this_machine(tmp_path: Path) -> None:
    made = graph()
    first, second = made.tasks
    job = replace(made, tasks=(replace(first, attempts=(replace(first.attempts[0], spark=WORK),)), second))
    here = configuration_of(tmp_path)
    (row, _) = _spark_rows(here, job)
    assert (row.task, row.attempt, row.application, row.url) == ("read <img>", 0, "local-7", "")
    assert f"no event log of local-7 is in {tmp_path / 'spark-events'}" in row.note
    (row, _) = _spark_rows(configuration_of(tmp_path, **{"client.url": "http://127.0.0.1:1"}), job)
    assert row.note == "run `understudy history-server` on the cluster's machine to see it in Spark's own pages"
    configuration_of(tmp_path, **{"spark.eventLog.dir": "hdfs://n/logs"}).write(tmp_path / "configuration.json")
    (row, _) = _spark_rows(here, job)
    assert row.note.startswith("run `understudy history-server -D "), "the running cluster's configuration counts"


def test_job_info_shows_links_or_says_once_why_there_are_none() -> None:
    def printed(*rows: AttemptInSpark) -> str:
        out = io.StringIO()
        print_spark(rows, out)
        return out.getvalue()

    assert printed() == printed(AttemptInSpark("main", 0, "", note="it has not run")) == ""
    link = SparkLink(f"{URL}/attempt?application=local-7&tag=t")
    text = printed(
        AttemptInSpark("main", 1, "local-7", link.url), AttemptInSpark("main", 0, "local-6", note="no event log")
    )
    assert [line.split() for line in text.splitlines()] == [
        [],
        ["TASK", "ATTEMPT", "SPARK", "APPLICATION", "SPARK'S", "PAGES"],
        ["main", "2", "local-7", link.url],
        ["main", "1", "local-6", "-"],
        ["no", "event", "log"],
    ]
    text = printed(AttemptInSpark("a", 0, "local-7", note="run it"), AttemptInSpark("b", 0, "local-7", note="run it"))
    assert "PAGES" not in text
    assert text.count("run it") == 1
