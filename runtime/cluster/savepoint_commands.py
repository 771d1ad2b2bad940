"""The commands ``savepoint list | info | verify | dispose``: they need only the directories, and no cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runtime.cluster.options import json_option

if TYPE_CHECKING:
    from runtime.checkpoint.savepoint import ListedSavepoint, Savepoint, SavepointQuery

_directory = click.Path(file_okay=False, path_type=Path)


@click.group()
def savepoint() -> None:
    """List, look at, verify and dispose savepoints; no cluster is needed."""


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
    """See that the savepoint in PATH is as it was written, by the digests of all its files.

    Exit status: 0 it is; 1 it is not.
    """
    from runtime.checkpoint.savepoint import verify_savepoint
    from runtime.cluster.formatting import clean
    from runtime.cluster.render import print_json, print_line

    problems = verify_savepoint(path)
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
    from runtime.checkpoint.model import NOTHING_COMMITTED
    from runtime.cluster.formatting import format_moment, format_size

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
