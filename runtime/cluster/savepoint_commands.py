"""The commands of ``understudy savepoint``, which need no cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conf.configuration import Configuration
from conf.options import EnvironmentOptions
from runtime.cluster.command_line import ExitStatus, configured, examples, json_option, local_directory, place
from runtime.cluster.output import (
    clean,
    format_moment,
    format_size,
    print_answer,
    print_document,
    print_error,
    print_facts,
    print_line,
    print_table,
    say,
)

if TYPE_CHECKING:
    from runtime.checkpoint.compatibility import Verdict
    from runtime.checkpoint.manifest import Savepoint, SavepointQuery

_SAVEPOINT = "/savepoints/savepoint-0f3c5a-1"
_URL = "s3://bucket/savepoints"


@click.group()
def savepoint() -> None:
    """List, show, verify, copy, change and dispose savepoints; no cluster is needed."""


@savepoint.command(name="list", epilog=examples("understudy savepoint list /savepoints"))
@json_option
@click.argument("directory", type=place)
def savepoint_list(directory: str, as_json: bool) -> None:
    """List the savepoints in DIRECTORY, the newest first, each verified.

    DIRECTORY may be a URL. Of savepoints there, only names and sizes of files are checked.
    """
    from runtime.checkpoint.remote_savepoint import list_at

    listed = list_at(directory)
    if as_json:
        from runtime.cluster.documents import SavepointLine

        print_document([SavepointLine.of(one) for one in listed])
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


@savepoint.command(name="info", epilog=examples(f"understudy savepoint info {_SAVEPOINT}"))
@json_option
@click.argument("path", type=place)
def savepoint_info(path: str, as_json: bool) -> None:
    """Show the savepoint in PATH, which may be a URL: its job, its queries, their offsets and their state."""
    from runtime.checkpoint.remote_savepoint import read_at

    found = read_at(path)
    if as_json:
        from runtime.cluster.documents import SavepointContent

        print_document(SavepointContent.of(found))
    else:
        _print_savepoint(found)


@savepoint.command(name="verify", epilog=examples(f"understudy savepoint verify {_SAVEPOINT}"))
@json_option
@click.argument("path", type=place)
def savepoint_verify(path: str, as_json: bool) -> None:
    """Verify the savepoint or checkpoint in PATH by the digests of all its files; a savepoint may be at a URL.

    Exit status: 0 it is unchanged since it was written; 1 it is not.
    """
    from runtime.checkpoint.remote_savepoint import verify_at

    problems = verify_at(path)
    if as_json:
        from runtime.cluster.documents import Verification

        print_document(Verification(path, not problems, problems))
    else:
        for problem in problems or [f"{path} is unchanged since it was written"]:
            print_line(clean(problem))
    if problems:
        sys.exit(ExitStatus.FAILED)


@savepoint.command(name="dispose", epilog=examples(f"understudy savepoint dispose {_SAVEPOINT}"))
@json_option
@click.argument("path", type=place)
def savepoint_dispose(path: str, as_json: bool) -> None:
    """Remove the savepoint in PATH, damaged or not; refuse any other directory. PATH may be a URL."""
    from runtime.checkpoint.errors import SavepointError
    from runtime.checkpoint.remote_savepoint import dispose_at

    if not dispose_at(path):
        raise SavepointError(f"there is no savepoint {path}", "`understudy savepoint list DIR` lists savepoints")
    from runtime.cluster.documents import DisposedSavepoint

    print_answer(DisposedSavepoint(path), clean(f"{path} is disposed"), as_json)


@savepoint.command(
    name="copy",
    epilog=examples(
        f"understudy savepoint copy {_SAVEPOINT} {_URL}",
        f"understudy savepoint copy {_URL}/savepoint-0f3c5a-1 /savepoints",
    ),
)
@json_option
@click.argument("path", type=place)
@click.argument("directory", type=place)
def savepoint_copy(path: str, directory: str, as_json: bool) -> None:
    """Copy the savepoint in PATH into DIRECTORY, and print the copy's own directory.

    At least one of them is a URL of a remote file system. The copy is verified, and complete when it appears.
    """
    from runtime.checkpoint.remote_savepoint import copy_savepoint, read_at

    place = copy_savepoint(path, directory)
    if as_json:
        from runtime.cluster.documents import SavepointContent

        print_document(SavepointContent.of(read_at(place)))
    else:
        print_line(place)


@savepoint.command(name="check", epilog=examples(f"understudy savepoint check --query counts {_SAVEPOINT} /tmp/trial"))
@json_option
@click.option("--query", help="Name of the query that OTHER is the checkpointLocation of.")
@click.argument("path", type=place)
@click.argument("other", type=local_directory)
def savepoint_check(path: str, other: Path, query: str | None, as_json: bool) -> None:
    """Show for each query whether a changed job can start from the savepoint in PATH, which may be a URL.

    OTHER describes the job's present queries, and comes from a trial run. It is a savepoint of that run, or the
    checkpointLocation of one of its queries.

    Exit status: 0 all queries fit, or fit with loss; 1 at least one does not.
    """
    from runtime.checkpoint.compatibility import check_job, check_query
    from runtime.checkpoint.remote_savepoint import local_copy
    from runtime.checkpoint.savepoint import MANIFEST, open_savepoint
    from runtime.checkpoint.snapshot import describe_query
    from runtime.checkpoint.state_choice import choose_query
    from runtime.protocol.query_snapshot import QueryLocation

    with local_copy(path) as local:
        kept = open_savepoint(local)
    if (other / MANIFEST).exists():
        now = open_savepoint(other)
        verdicts = check_job([one.description for one in kept.queries], [one.description for one in now.queries])
    else:
        old = choose_query(kept, query).description
        verdicts = [check_query(old, describe_query(QueryLocation(old.name, str(other.absolute()))))]
    print_verdicts(verdicts, as_json)


@savepoint.command(
    name="rescale", epilog=examples(f"understudy savepoint rescale --partitions 8 --to /savepoints/of-8 {_SAVEPOINT}")
)
@configured
@json_option
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    required=True,
    help="Number of partitions of the state from now on.",
)
@click.option("--to", "target", type=local_directory, required=True, help="Directory of the result; it must not exist.")
@click.option("--query", help="Name of the only query to rescale.  [default: all with state]")
@click.argument("path", type=local_directory)
def savepoint_rescale(
    configuration: Configuration, path: Path, target: Path, partitions: int, query: str | None, as_json: bool
) -> None:
    """Write a savepoint with the state of the savepoint in PATH in another number of partitions.

    Only RocksDB can be rescaled; `savepoint convert` moves other state into it. PATH is not changed. The result
    appears when it is whole, and when counts and checksums of its state are those of PATH. Start the job from it with
    `job run --from`.
    """
    from runtime.checkpoint.rescale import plan_rescale
    from runtime.cluster.rescaling import compact_interval_of, java_home_of, run_plan

    interval = compact_interval_of(configuration)
    plan = plan_rescale(path, partitions, target, *(() if query is None else (query,)))
    _print_made(lambda: run_plan(plan, java_home_of(configuration), interval), as_json)


def _print_made(make: Callable[[], Savepoint], as_json: bool) -> None:
    """Print a savepoint that Spark makes, or why it did not."""
    from runtime.spark.errors import SparkError

    try:
        made = make()
    except SparkError as error:
        print_error(error)
        sys.exit(ExitStatus.FAILED)
    if as_json:
        from runtime.cluster.documents import SavepointContent

        print_document(SavepointContent.of(made))
    else:
        for text in made.edited.dropped if made.edited else ():
            say(clean(f"note: {text}"))
        print_line(made.path)


@savepoint.command(
    name="convert", epilog=examples(f"understudy savepoint convert --to /savepoints/rocksdb {_SAVEPOINT}")
)
@configured
@json_option
@click.option("--to", "target", type=local_directory, required=True, help="Directory of the result; it must not exist.")
@click.option("--query", help="Name of the only query to convert.  [default: all with state in the HDFS-backed store]")
@click.argument("path", type=local_directory)
def savepoint_convert(configuration: Configuration, path: Path, target: Path, query: str | None, as_json: bool) -> None:
    """Write a savepoint that has the state of the savepoint in PATH in RocksDB.

    Spark's HDFS-backed store (state.backend.type=hashmap) can neither be rescaled nor edited; RocksDB can. PATH is not
    changed. The result appears when it is whole, and when Spark reads the same keys and values from it. Start the job
    from it with `job run --from`, and with `-D state.backend.type=rocksdb` for changelogs.
    """
    from runtime.checkpoint.convert import plan_conversion
    from runtime.cluster.rescaling import compact_interval_of, java_home_of
    from runtime.spark.state_convert import convert

    interval = compact_interval_of(configuration)
    plan = plan_conversion(path, target, query)
    _print_made(lambda: convert(plan, java_home_of(configuration), interval), as_json)


@savepoint.command(
    name="edit", epilog=examples(f"understudy savepoint edit --to /savepoints/edited {_SAVEPOINT} drop_closed.py")
)
@configured
@json_option
@click.option("--to", "target", type=local_directory, required=True, help="Directory of the result; it must not exist.")
@click.option("--query", help="Name of the only query to edit.  [default: all with state]")
@click.option("--operator", type=click.IntRange(min=0), help="Id of the only operator to edit.  [default: all]")
@click.option("--variable", help="The only state variable of a transformWithState to edit.  [default: all]")
@click.option(
    "--schemas-from",
    "schemas",
    type=local_directory,
    help="Savepoint of a new version of the job, whose operators and types the state gets.",
)
@click.argument("path", type=local_directory)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def savepoint_edit(
    configuration: Configuration,
    path: Path,
    file: Path,
    target: Path,
    query: str | None,
    operator: int | None,
    variable: str | None,
    schemas: Path | None,
    as_json: bool,
) -> None:
    """Write a savepoint with the state that FILE makes of the state of the savepoint in PATH.

    FILE is Python, and defines `def edit(state, part)`. The function gets each part of the state as a DataFrame with
    the columns key, value and partition_id. It returns the DataFrame of the new state: rows may be dropped, changed
    or added. To change nothing, it returns the same DataFrame.

    With --schemas-from the function is called for each part of the new version's state. It gets the former rows of that
    part, and returns rows of the new types. A third argument, as in `def edit(state, part, former)`, reads other parts.

    Only RocksDB can be edited; `savepoint convert` moves other state into it. PATH is not changed. The result appears
    when it is whole, and when Spark reads from it what the function returned. Start the job from it with
    `job run --from`.
    """
    from runtime.checkpoint.edit import plan_edit
    from runtime.cluster.rescaling import compact_interval_of, java_home_of
    from runtime.spark.edit_function import load_function
    from runtime.spark.state_edit import edit

    interval, java_home = compact_interval_of(configuration), java_home_of(configuration)
    if schemas is not None:
        from runtime.checkpoint.state_evolution import plan_evolution
        from runtime.spark.state_evolution import evolve

        if operator is not None or variable is not None:
            raise click.UsageError(
                "--schemas-from writes all state of a query; choose by part.operator in the function"
            )
        evolution = plan_evolution(path, schemas, target, query)
        function = load_function(file.absolute())
        _print_made(lambda: evolve(evolution, function, java_home, interval), as_json)
        return
    plan = plan_edit(path, target, query, operator, variable)
    function = load_function(file.absolute())
    _print_made(lambda: edit(plan, function, java_home, interval), as_json)


@savepoint.command(
    name="name-sources", epilog=examples(f"understudy savepoint name-sources --to /savepoints/named {_SAVEPOINT} us eu")
)
@json_option
@click.option("--to", "target", type=local_directory, required=True, help="Directory of the result; it must not exist.")
@click.option("--query", help="Name of the query; needed if there are several.")
@click.argument("path", type=local_directory)
@click.argument("names", nargs=-1, required=True)
def savepoint_name_sources(path: Path, names: tuple[str, ...], target: Path, query: str | None, as_json: bool) -> None:
    """Write a savepoint in which the sources of a query of the savepoint in PATH have the NAMES.

    Give a name for each source, in the order of the code that wrote the state. Spark then finds the offsets of sources
    by their names. So the job may add, remove and move sources. PATH is not changed, and no Spark is started.
    """
    from runtime.checkpoint.source_edit import change_sources, plan_names

    plan = plan_names(path, target, names, query)
    _print_made(lambda: change_sources(plan), as_json)


@savepoint.command(
    name="set-offsets",
    epilog=examples(
        f"""understudy savepoint set-offsets --to /savepoints/moved {_SAVEPOINT} '0={{"clicks":{{"0":17}}}}'"""
    ),
)
@json_option
@click.option("--to", "target", type=local_directory, required=True, help="Directory of the result; it must not exist.")
@click.option("--query", help="Name of the query; needed if there are several.")
@click.argument("path", type=local_directory)
@click.argument("offsets", nargs=-1, required=True, metavar="SOURCE=OFFSET...")
def savepoint_set_offsets(path: Path, offsets: tuple[str, ...], target: Path, query: str | None, as_json: bool) -> None:
    """Write a savepoint from which a query of the savepoint in PATH reads on at other offsets.

    SOURCE is the name of a source, or its number if the sources have no names. OFFSET is JSON in the form that
    `savepoint info` shows. Rows between the former and the new offset are read again, or never. PATH is not changed,
    and no Spark is started.
    """
    from runtime.checkpoint.source_edit import change_sources, plan_offsets

    given = dict(word.partition("=")[::2] for word in offsets)
    if len(given) < len(offsets) or not all("=" in word for word in offsets):
        raise click.UsageError("give each source once, as SOURCE=OFFSET")
    plan = plan_offsets(path, target, given, query)
    _print_made(lambda: change_sources(plan), as_json)


@savepoint.command(name="state", epilog=examples(f"understudy savepoint state --limit 5 {_SAVEPOINT}"))
@configured
@json_option
@click.option("--query", help="Name of the query; needed if more than one has state.")
@click.option("--operator", type=click.IntRange(min=0), help="Id of the operator.  [default: the first]")
@click.option("--store", help="Name of the operator's store; joins have several.  [default: the first]")
@click.option("--variable", help="State variable of a transformWithState; needed if it has more than one.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Number of rows at most.")
@click.argument("path", type=place)
def savepoint_state(
    configuration: Configuration,
    path: str,
    query: str | None,
    operator: int | None,
    store: str | None,
    variable: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show keys and values of the state in the savepoint in PATH, which may be a URL.

    Starts a Spark of one core. `read_state` of the package `understudy` returns the same as a DataFrame.
    """
    from runtime.checkpoint.remote_savepoint import local_copy
    from runtime.checkpoint.savepoint import open_savepoint
    from runtime.checkpoint.state_choice import choose_state
    from runtime.spark.errors import SparkError
    from runtime.spark.state_reader import first_rows

    java_home = configuration.get(EnvironmentOptions.JAVA_HOME)
    try:
        with local_copy(path) as local:
            choice = choose_state(open_savepoint(local), query, operator, store, variable)
            rows = first_rows(choice, limit, str(java_home) if java_home else None)
    except SparkError as error:
        print_error(error)
        sys.exit(ExitStatus.FAILED)
    plain = [{name: _plain(value) for name, value in row.items()} for row in rows]
    if as_json:
        from runtime.cluster.documents import StateRows

        print_document(StateRows(choice.query.snapshot.name, choice.operator, choice.store, plain))
    elif not rows:
        print_line("no rows")
    else:
        columns = [name for name in plain[0] if name != "partition_id"]
        shown = [[str(row["partition_id"]), *(json.dumps(row[name]) for name in columns)] for row in plain]
        print_table(("PARTITION", *(name.upper() for name in columns)), shown)


def _plain(value: object) -> object:
    """Convert a value of Spark's for JSON; times, decimals and bytes become texts."""
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _print_savepoint(found: Savepoint) -> None:

    print_facts(
        {
            "Savepoint": found.path,
            "Job": f"{found.job.id} ({found.job.name})",
            "Owner": found.job.owner,
            "Created": format_moment(found.created_ms),
            "Files": f"{len(found.files)}, {format_size(found.bytes)}",
            "Written by": f"Understudy {found.version}, Spark {found.spark_version}",
            "Rescaled": _origin(found),
            "Edited": f"from {found.edited.path} of {format_moment(found.edited.created_ms)}" if found.edited else "",
            "Schemas": f"from {found.edited.schemas}" if found.edited and found.edited.schemas else "",
            "Left out": "; ".join(found.edited.dropped) if found.edited else "",
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


def _origin(found: Savepoint) -> str:
    origin = found.rescaled
    if origin is None:
        return ""
    return f"to {origin.partitions} partitions, from {origin.path} of {format_moment(origin.created_ms)}"


_KINDS = {"other": "custom data source"}
"""Names of kinds of sources, for people. Of a source from elsewhere, Spark's checkpoint has only the offsets."""


def _facts(query: SavepointQuery) -> dict[str, str]:
    from runtime.protocol.query_snapshot import NOTHING_COMMITTED

    snapshot = query.snapshot
    return {
        "Query": snapshot.name,
        "Id": snapshot.query_id,
        "Batch": "none was committed" if snapshot.batch_id == NOTHING_COMMITTED else str(snapshot.batch_id),
        "Watermark": format_moment(query.watermark_ms) if query.watermark_ms else "",
        "Sources": "; ".join(
            f"{_KINDS.get(kind, kind)}{f' {name}' if name else ''} at {offset}"
            for kind, name, offset in zip_longest(
                query.description.sources, query.description.source_names, snapshot.offsets
            )
        ),
        "File sink": snapshot.sink or "",
        "Taken of": snapshot.location,
        "Size": f"{snapshot.files} files, {format_size(snapshot.bytes)}",
    }


def _fields(schema: str) -> list[str]:
    from runtime.checkpoint.state_schema import schema_fields

    return [f"{name} {kind}" for name, kind in schema_fields(schema)]


def print_verdicts(verdicts: Sequence[Verdict], as_json: bool) -> None:
    """Print verdicts, query by query; exit with 1 if a query does not fit."""
    from runtime.checkpoint.compatibility import Fit

    if as_json:
        print_document(verdicts)
    else:
        for verdict in verdicts:
            print_line(clean(f"{verdict.query}: {verdict.fit.value}"))
            remedies = (f"to start it: {remedy}" for remedy in verdict.remedies)
            for line in (*verdict.reasons, *remedies, *verdict.losses, *verdict.notes):
                print_line(clean(f"  {line}"))
    if any(verdict.fit is Fit.DOES_NOT_FIT for verdict in verdicts):
        sys.exit(ExitStatus.FAILED)
