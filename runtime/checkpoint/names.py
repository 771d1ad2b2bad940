"""The names of queries as names of directories."""

from __future__ import annotations

from urllib.parse import quote


def directory_name(query_name: str) -> str:
    """A name for the directory of a query, one for each query name; never hidden, nor a way out of its parent."""
    quoted = quote(query_name, safe="")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def savepoint_name(job_id: str, trigger_id: str) -> str:
    """Return the name of a savepoint's directory, by which whoever knows the trigger finds it again."""
    return f"savepoint-{job_id[:6]}-{trigger_id[:12]}"
