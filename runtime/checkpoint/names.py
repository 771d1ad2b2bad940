"""Names of the directories of queries and savepoints."""

from __future__ import annotations

from urllib.parse import quote


def directory_name(query_name: str) -> str:
    """Return the name of a query's directory, unique for each query name.

    It never begins with a dot and has no slash, so the directory is not hidden and stays inside its parent.
    """
    quoted = quote(query_name, safe="")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def savepoint_name(job_id: str, trigger_id: str) -> str:
    """Return the name of a savepoint's directory, by which a JobMaster that knows the trigger id finds it again."""
    return f"savepoint-{job_id[:6]}-{trigger_id[:12]}"
