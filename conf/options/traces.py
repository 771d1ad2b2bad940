"""Options of traces."""

from __future__ import annotations

from conf.option import option
from conf.values import FilePath, MemorySize, SecretHttpUrl


class TraceOptions:
    """OpenTelemetry traces of jobs ([traces.md](traces.md)). Off unless a directory or an endpoint is set."""

    DIRECTORY = option(
        "traces.directory",
        FilePath("/var/lib/understudy/traces"),
        None,
        "Directory of files to which JobMasters append the spans of their jobs, as OTLP/JSON, one request in a line. "
        "It is made if needed, with mode 0700. Unset: no files.",
    )
    MAX_SIZE = option(
        "traces.max-size",
        MemorySize("64 mb", minimum=1 << 20),
        "64 mb",
        "Most space of these files on a machine. Beyond it the oldest spans are deleted, a quarter of all at a time.",
    )
    ENDPOINT = option(
        "traces.otlp.endpoint",
        SecretHttpUrl("http://127.0.0.1:4318"),
        None,
        "URL of an OpenTelemetry collector to which JobMasters send the spans of their jobs by OTLP/HTTP, with user "
        "and password if it requires them. `/v1/traces` is added. Spans have names of jobs and texts of failures: use "
        "`https://` for a collector on another machine. Unset: nothing is sent.",
    )
