"""Lines of logs: a record in, a line out."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.process.diagnostics import INHERITED, ROOT, LogLevelError, log_levels, set_log_level
from actors.process.logs import (
    JsonFormatter,
    LogConfig,
    TextFormatter,
    configure_logging,
    current_context,
    fields_of,
    log_context,
    set_process_context,
    without_secrets,
)
from conf.configuration import Configuration
from runtime.environment.context import log_config
from runtime.environment.directory import ClusterDirectory
from runtime.ids import ExecutionAttemptID, JobID

JOB, ATTEMPT = JobID("a" * 32), ExecutionAttemptID("b" * 32)
CONTEXT = {"component": "dispatcher", "epoch": "17"}


def record(text: str, *arguments: object, error: bool = False) -> logging.LogRecord:
    failure = None
    if error:
        try:
            raise ValueError("first line\n2026-01-01 00:00:00 INFO forged")
        except ValueError:
            failure = sys.exc_info()
    return logging.LogRecord("runtime.dispatcher", logging.WARNING, "file.py", 1, text, arguments, failure)


def text_of(*arguments: object, error: bool = False) -> str:
    return TextFormatter(lambda: CONTEXT).format(record(*arguments, error=error))  # type: ignore[arg-type]


def json_of(*arguments: object, error: bool = False) -> dict[str, object]:
    line = JsonFormatter(lambda: CONTEXT).format(record(*arguments, error=error))  # type: ignore[arg-type]
    assert "\n" not in line
    found: dict[str, object] = json.loads(line)
    return found


def test_a_line_of_text_says_where_it_comes_from() -> None:
    line = text_of("job %s has attempt %s", JOB, ATTEMPT)
    moment, rest = line[:28], line[29:]
    assert moment[19] == ","
    assert moment[23] in "+-"
    assert rest.startswith("WARNING [")
    fields = f"component=dispatcher epoch=17 job={JOB} attempt={ATTEMPT}"
    assert rest.partition("] ")[2] == f"runtime.dispatcher {fields} - job {JOB} has attempt {ATTEMPT}"


def test_a_line_of_json_has_the_same_fields() -> None:
    line = json_of("job %s", JOB)
    assert {"component": "dispatcher", "epoch": "17", "job": str(JOB)}.items() <= line.items()
    assert (line["level"], line["logger"], line["message"]) == ("WARNING", "runtime.dispatcher", f"job {JOB}")
    assert "exception" not in line


def test_a_traceback_is_part_of_its_event() -> None:
    first, *others = text_of("it failed", error=True).split("\n")
    assert first.endswith(" - it failed")
    assert others[0].strip() == "Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in others)
    assert "forged" in str(json_of("it failed", error=True)["exception"])


@given(st.text())
def test_no_text_of_others_looks_like_an_event_of_its_own(name: str) -> None:
    lines = text_of("job %s was accepted", name).splitlines()
    assert all(line.startswith("    ") for line in lines[1:])
    assert json_of("job %s was accepted", name)["message"] == f"job {without_secrets(name)} was accepted"


def test_the_first_id_of_a_kind_is_what_a_line_is_about() -> None:
    other = JobID("c" * 32)
    assert fields_of(record("%s after %s", JOB, other), {"job": str(other)}) == {"job": str(JOB)}
    assert fields_of(record("no ids"), {"epoch": "3", "component": "x"}) == {"component": "x", "epoch": "3"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://ada:secret@host:1/0 is gone", "redis://******@host:1/0 is gone"),
        ("redis://:secret@host, s3://key:word@bucket", "redis://******@host, s3://******@bucket"),
        ("Authorization: Bearer 0123456789abcdef0123", "Authorization: Bearer ******"),
        ("akka.tcp://understudy@127.0.0.1:6123/user/x", "akka.tcp://understudy@127.0.0.1:6123/user/x"),
        ("http://host/a?b=c@d", "http://host/a?b=c@d"),
    ],
)
def test_secrets_are_never_written(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    assert text_of("%s", text).endswith(f" - {shown}")
    assert json_of("%s", text)["message"] == shown


async def test_a_context_holds_for_its_task_and_what_that_starts() -> None:
    seen = {}

    async def work(name: str) -> None:
        with log_context(job=name):
            await asyncio.sleep(0)
            seen[name] = await asyncio.create_task(inner())

    async def inner() -> str:
        return current_context()["job"]

    await asyncio.gather(work("one"), work("two"))
    assert seen == {"one": "one", "two": "two"}
    assert "job" not in current_context()
    set_process_context(epoch=17)
    assert current_context()["epoch"] == "17"
    set_process_context(epoch=None)
    assert "epoch" not in current_context()


@pytest.fixture
def own_logging() -> Iterator[None]:
    """What a test makes of the process's logging is undone after it."""
    root, handlers, level = logging.root, list(logging.root.handlers), logging.root.level
    root.handlers.clear()
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    set_process_context(component=None)


@pytest.mark.usefixtures("own_logging")
def test_a_file_is_private_and_put_aside_when_it_is_full(tmp_path: Path) -> None:
    file = tmp_path / "dispatcher.log"
    configure_logging(LogConfig(file, "INFO", 2000, 2, as_json=True, component="dispatcher"))
    for number in range(100):
        logging.getLogger("runtime.x").info("line %d of a surrogate \udcff", number)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["dispatcher.log", "dispatcher.log.1", "dispatcher.log.2"]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[-1]["message"] == "line 99 of a surrogate \udcff"
    assert {line["component"] for line in lines} == {"dispatcher"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())


@pytest.mark.parametrize("key", ["env.log.format", "log.format"])
def test_the_format_is_an_option(key: str, tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    told = log_config(Configuration.from_dict({key: "json", "env.log.max": "3"}), directory, "rest")
    assert told == LogConfig(directory.log / "rest.log", "INFO", 64 << 20, 3, as_json=True, component="rest")
    assert not log_config(Configuration.from_dict({}), directory, "rest").as_json


@pytest.mark.usefixtures("own_logging")
def test_levels_are_changed_and_what_they_were_is_told() -> None:
    logging.root.setLevel("INFO")
    logger = logging.getLogger("tests.levels.one")
    try:
        assert set_log_level("tests.levels", "DEBUG") == INHERITED
        assert logger.isEnabledFor(logging.DEBUG)
        assert log_levels()["tests.levels"] == "DEBUG"
        assert set_log_level("tests.levels", INHERITED) == "DEBUG"
        assert "tests.levels" not in log_levels()
        assert set_log_level(ROOT, "ERROR") == "INFO"
        assert log_levels()[ROOT] == "ERROR"
        with pytest.raises(LogLevelError, match=r"no logger 'tests.level' .*tests.levels is"):
            set_log_level("tests.level", "DEBUG")
        with pytest.raises(LogLevelError, match="'LOUD' is not a log level"):
            set_log_level(ROOT, "LOUD")
        with pytest.raises(LogLevelError, match="is not a log level"):
            set_log_level(ROOT, INHERITED)
    finally:
        logging.getLogger("tests.levels").setLevel(logging.NOTSET)
