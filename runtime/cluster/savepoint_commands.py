"""``savepoint list | info | verify | dispose | check | state``: they need no cluster, only the directories."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conf.configuration import Configuration
from runtime.cluster.options import configured, json_option

if TYPE_CHECKING:
    from runtime.checkpoint.description import QueryDescription
    from runtime.checkpoint.manifest import Savepoint, SavepointQuery
    from runtime.checkpoint.savepoint import ListedSavepoint

_directory = click.Path(file_okay=False, path_type=Path)


@click.group()
def savepoint() -> None:
    """List, verify and dispose savepoints, and look into them; no cluster is needed."""


@savepoint.command(name="list")
@json_option
@click.argument("directory", type=_directory)
def savepoint_list(directory: Path, as_json: bool) -> None:
    """List the savepoints in DIRECTORY, the newest first, each verified."""
    from runtime.checkpoint.savepoint import list_savepoints
    from runtime.cluster.formatting import format_moment, format_size
    from runtime.cluster.render import print_json, print_line, print_table

    listed = list_savepoints(directory)
    if as_json:
        print_json([_listed(one) for one in listed])
    elif not listed:
        print_line("no savepoints")
    else:
        rows = []
        for one in listed:
            found = one.savepoint
            state = "DAMAGED" if one.problems else "OK"
            if found is None:
                rows.append((Path(one.path).name, state, "", "", "", ""))
            else:
                created, size = format_moment(found.created_ms), format_size(found.bytes)
                rows.append((Path(one.path).name, state, found.job.name, created, str(len(found.queries)), size))
        print_table(("SAVEPOINT", "STATE", "JOB", "CREATED", "QUERIES", "SIZE"), rows)


@savepoint.command(name="info")
@json_option
@click.argument("path", type=_directory)
def savepoint_info(path: Path, as_json: bool) -> None:
    """Show the savepoint in PATH: whose it is, its queries, where they stand, and what their state is."""
    from runtime.checkpoint.savepoint import read_savepoint
    from runtime.cluster.render import print_json

    found = read_savepoint(path)
    if as_json:
        print_json(found)
        return
    _show(found)


@savepoint.command(name="verify")
@json_option
@click.argument("path", type=_directory)
def savepoint_verify(path: Path, as_json: bool) -> None:
    """See that the savepoint or checkpoint in PATH is as it was written, by the digests of all its files.

    Exit status: 0 it is; 1 it is not.
    """
    from runtime.checkpoint.retained import verify_state
    from runtime.cluster.formatting import clean
    from runtime.cluster.render import print_json, print_line

    problems = verify_state(path)
    if as_json:
        print_json({"path": path, "ok": not problems, "problems": problems})
    else:
        for problem in problems or [f"{path} is as it was written"]:
            print_line(clean(problem))
    if problems:
        sys.exit(1)


@savepoint.command(name="dispose")
@json_option
@click.argument("path", type=_directory)
def savepoint_dispose(path: Path, as_json: bool) -> None:
    """Remove the savepoint in PATH, damaged or not. What is no savepoint is left alone."""
    from runtime.checkpoint.errors import SavepointError
    from runtime.checkpoint.savepoint import dispose_savepoint
    from runtime.cluster.formatting import clean
    from runtime.cluster.render import print_json, print_line

    if not dispose_savepoint(path):
        raise SavepointError(f"there is no savepoint {path}", "`savepoint list DIR` shows what there is")
    if as_json:
        print_json({"path": path, "disposed": True})
    else:
        print_line(clean(f"{path} is disposed"))


@savepoint.command(name="check")
@json_option
@click.option("--query", help="Name of the query that OTHER is of, if that is a checkpointLocation.")
@click.argument("path", type=_directory)
@click.argument("other", type=_directory)
def savepoint_check(path: Path, other: Path, query: str | None, as_json: bool) -> None:
    """Say whether a changed job could go on from the savepoint in PATH.

    OTHER tells what the job's queries are now: a savepoint of it, or the checkpointLocation of one query, from a trial
    run.

    Exit status: 0 all queries fit, if with loss; 1 one does not.
    """
    from runtime.checkpoint.compatibility import check_job, check_query
    from runtime.checkpoint.savepoint import MANIFEST, open_savepoint
    from runtime.checkpoint.snapshot import describe_query
    from runtime.checkpoint.state_choice import choose_query
    from runtime.cluster.check_command import print_verdicts
    from runtime.protocol.query_snapshot import QueryLocation

    kept = open_savepoint(path)
    if (other / MANIFEST).exists():
        verdicts = check_job(_descriptions(kept), _descriptions(open_savepoint(other)))
    else:
        old = choose_query(kept, query).description
        verdicts = [check_query(old, describe_query(QueryLocation(old.name, str(other.absolute()))))]
    print_verdicts(verdicts, as_json)


@savepoint.command(name="state")
@configured
@json_option
@click.option("--query", help="Name of the query; needed if more than one has state.")
@click.option("--operator", type=click.IntRange(min=0), help="Id of the operator.  [default: the first]")
@click.option("--store", help="Name of the operator's store; joins have several.  [default: the first]")
@click.option("--variable", help="State variable of a transformWithState; needed if it has more than one.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many rows at most.")
@click.argument("path", type=_directory)
def savepoint_state(
    configuration: Configuration,
    path: Path,
    query: str | None,
    operator: int | None,
    store: str | None,
    variable: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show keys and values of the state in the savepoint in PATH.

    A Spark of one core is started for it. `runtime.spark.state_reader.read_state` gives the same as a DataFrame.
    """
    from conf.options import EnvironmentOptions
    from runtime.checkpoint.savepoint import open_savepoint
    from runtime.checkpoint.state_choice import choose_state
    from runtime.cluster.render import print_error, print_json, print_line, print_table
    from runtime.spark.errors import SparkError
    from runtime.spark.state_reader import first_rows

    choice = choose_state(open_savepoint(path), query, operator, store, variable)
    java_home = configuration.get(EnvironmentOptions.JAVA_HOME)
    try:
        rows = first_rows(choice, limit, str(java_home) if java_home else None)
    except SparkError as error:
        print_error(error)
        sys.exit(1)
    plain = [{name: _plain(value) for name, value in row.items()} for row in rows]
    if as_json:
        print_json(
            {"query": choice.query.snapshot.name, "operator": choice.operator, "store": choice.store, "rows": plain}
        )
    elif not rows:
        print_line("no rows")
    else:
        columns = [name for name in plain[0] if name != "partition_id"]
        shown = [[str(row["partition_id"]), *(json.dumps(row[name]) for name in columns)] for row in plain]
        print_table(("PARTITION", *(name.upper() for name in columns)), shown)


def _plain(value: object) -> object:
    """A value of Spark's as JSON has it; what it has not (moments, decimals, bytes) as text."""
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _descriptions(found: Savepoint) -> list[QueryDescription]:
    return [query.description for query in found.queries]


def _listed(one: ListedSavepoint) -> dict[str, object]:
    found = one.savepoint
    return {
        "path": one.path,
        "ok": not one.problems,
        "problems": one.problems,
        "job": found.job if found else None,
        "created_ms": found.created_ms if found else None,
        "queries": [query.snapshot.name for query in found.queries] if found else [],
        "bytes": found.bytes if found else None,
    }


def _show(found: Savepoint) -> None:
    from runtime.cluster.formatting import format_moment, format_size
    from runtime.cluster.render import print_facts, print_line, print_table

    print_facts(
        {
            "Savepoint": found.path,
            "Job": f"{found.job.id} ({found.job.name})",
            "Created": format_moment(found.created_ms),
            "Files": f"{len(found.files)}, {format_size(found.bytes)}",
            "Written by": f"Understudy {found.version}, Spark {found.spark_version}",
        }
    )
    for query in found.queries:
        print_line("")
        print_facts(_facts(query))
        rows = [
            (
                f"{operator.id} {operator.name}",
                store.name,
                str(store.partitions),
                family.name,
                ", ".join(_fields(family.key)),
                ", ".join(_fields(family.value)),
            )
            for operator in query.description.operators
            for store in operator.stores
            for family in store.families
        ]
        if rows:
            print_table(("OPERATOR", "STORE", "PARTITIONS", "FAMILY", "KEY", "VALUE"), rows)


def _facts(query: SavepointQuery) -> dict[str, str]:
    from runtime.cluster.formatting import format_moment, format_size
    from runtime.protocol.query_snapshot import NOTHING_COMMITTED

    snapshot = query.snapshot
    return {
        "Query": snapshot.name,
        "Id": snapshot.query_id,
        "Batch": "none was committed" if snapshot.batch_id == NOTHING_COMMITTED else str(snapshot.batch_id),
        "Watermark": format_moment(query.watermark_ms) if query.watermark_ms else "",
        "Sources": "; ".join(
            f"{kind} at {offset}" for kind, offset in zip(query.description.sources, snapshot.offsets, strict=True)
        ),
        "File sink": snapshot.sink or "",
        "Taken of": snapshot.location,
        "Size": f"{snapshot.files} files, {format_size(snapshot.bytes)}",
    }


def _fields(schema: str) -> list[str]:
    from runtime.checkpoint.state_schema import schema_fields

    return [f"{name} {kind}" for name, kind in schema_fields(schema)]
