"""Links from an attempt of a task to its work in Spark's own pages, which `understudy history-server` serves.

A link is made only if the History Server runs on this machine and finds the event log of the attempt's driver. In all
other cases a note says why there is none, and what to do. `link_of` is pure; `look` reads the machine.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlencode, urlsplit

from conf.configuration import Configuration
from conf.options import ClusterOptions, SparkOptions
from runtime.environment.directory import EVENT_LOGS, ClusterDirectory
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo, TaskInfo
from runtime.protocol.descriptor import SparkWork
from runtime.spark.driver.event_logs import find
from runtime.spark.driver.ui import find_uis

ATTEMPT = "/attempt"
"""Path of the History Server's proxy that lists the Spark jobs and SQL executions of an attempt."""


@dataclass(frozen=True, slots=True)
class HistoryState:
    """The History Server of a cluster, and the event logs that it finds, as one machine sees them.

    Args:
        url: of the History Server's proxy, without a path; empty while it does not run on this machine.
        command: starts it.
        logs: path or URL of the directory of event logs.
        applications: ids of the applications that have a log there; None if the directory is not one of this machine.
        live: ids of those whose running driver serves its own UI.
    """

    url: str
    command: str
    logs: str
    applications: frozenset[str] | None
    live: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SparkLink:
    """Address of an attempt's work in Spark's own pages; or empty, and a note why there is none."""

    url: str = ""
    note: str = ""


def link_of(work: SparkWork | None, state: HistoryState) -> SparkLink:
    """Return the link of an attempt.

    Args:
        work: the attempt's work in Spark; None if it is not known.
        state: of the History Server.
    """
    if work is None:
        return SparkLink(
            note="no Spark application is known: it has not run in Spark, or its driver is not the cluster's"
        )
    is_shown = state.applications is None or work.application in state.applications | state.live
    if not is_shown:
        return SparkLink(
            note=f"no event log of {work.application} is in {state.logs}: its driver wrote none "
            f"({SparkOptions.EVENT_LOG_ENABLED.key}=false), or wrote it elsewhere, or it was deleted; and its driver "
            "serves no UI, or has ended"
        )
    if not state.url:
        return SparkLink(note=f"run `{state.command}` on the cluster's machine to see it in Spark's own pages")
    return SparkLink(state.url + ATTEMPT + "?" + urlencode({"application": work.application, "tag": work.tag}))


def attempts_of(graph: ArchivedExecutionGraph) -> Iterator[tuple[TaskInfo, AttemptInfo]]:
    """Return the attempts of a job: task by task, the newest attempt first."""
    return ((task, attempt) for task in graph.tasks for attempt in reversed(task.attempts))


def log_directory(given: Mapping[str, str], runtime_dir: Path) -> str:
    """Return the URL of the event logs of a cluster's drivers: a user's own directory, or the cluster's.

    Args:
        given: the cluster's settings of Spark.
        runtime_dir: its runtime directory.
    """
    url = given.get("spark.history.fs.logDirectory") or given.get("spark.eventLog.dir")
    return url or (runtime_dir / EVENT_LOGS).as_uri()


def local_directory(url: str) -> Path | None:
    """Return the path of a directory of event logs; None if it is in another file system than this machine's."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme in ("", "file") else None


def look(configuration: Configuration) -> HistoryState:
    """Look for the History Server of a cluster and for its event logs on this machine. Raises OSError.

    Args:
        configuration: of the cluster.
    """
    runtime_dir = configuration.get(ClusterOptions.RUNTIME_DIR)
    url = log_directory(configuration.spark_properties(), runtime_dir)
    directory = local_directory(url)
    living = ClusterDirectory(runtime_dir).history_server_claim().living()
    applications = None if directory is None else frozenset(log.application for log in find(directory))
    return HistoryState(
        "" if living is None else living[1],
        command_for(configuration),
        url if directory is None else str(directory),
        applications,
        frozenset(find_uis(runtime_dir)),
    )


def command_for(configuration: Configuration) -> str:
    """Return the command that starts the History Server of a cluster, for a shell of the cluster's machine."""
    runtime_dir = configuration.get(ClusterOptions.RUNTIME_DIR)
    key = ClusterOptions.RUNTIME_DIR.key
    usual = Configuration.from_dict({}).get(ClusterOptions.RUNTIME_DIR)
    return "understudy history-server" + ("" if runtime_dir == usual else f" -D {key}={shlex.quote(str(runtime_dir))}")
