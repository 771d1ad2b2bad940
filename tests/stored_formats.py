"""The formats of what a cluster stores beyond the life of its processes, with golden files and recorded shapes.

    python -m tests.stored_formats [--write]

A later release reads what an earlier one wrote. Three kinds of files keep that promise, all below ``tests/golden``:

- ``RELEASE/NAME``: one stored value of each format, as that release wrote it. A unit test reads each of them.
- ``shapes.json``: the fields and types of each format, with its version. A unit test compares them with the code.
- ``levels.json``: the version of each format at each feature level. It never changes; a new version needs a new level.

A field with a default may be added at any time: earlier releases ignore it, and later ones fill it in. ``--write``
records such a change. Any other change needs a new version of the format, and a reader for the version before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import tempfile
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from actors.rpc.codec import to_plain
from actors.rpc.gateway import FencingToken
from blob.server import _decode as decode_blob_fence
from blob.server import _encode as encode_blob_fence
from runtime import __version__
from runtime.checkpoint.handover import decode_handover, encode_handover
from runtime.checkpoint.integrity import FileRecord, decode_records, encode_records
from runtime.checkpoint.lease import LeaseHolder
from runtime.checkpoint.manifest import Savepoint, from_manifest, to_manifest
from runtime.checkpoint.retained import METADATA, encode_metadata, read_checkpoint
from runtime.checkpoint.savepoint import MANIFEST
from runtime.checkpoint.stored_snapshot import DESCRIPTION, FILES, load_snapshot
from runtime.cluster.job_upgrade import decode_upgrade, encode_upgrade
from runtime.cluster.job_upgrade_plan import Upgrade
from runtime.cluster.upgrade_environment import FormerEnvironment
from runtime.environment.descriptor import ClusterDescriptor
from runtime.feature_level import VERSIONS, FeatureLevel, Format, newest_version, supported_levels
from runtime.ha.feature_level import decode_level, encode_level
from runtime.ha.running_jobs import JobEntry, JobSchedulingStatus
from runtime.ha.state_files import StateHandle
from runtime.ha.user_store import StoredUsers, decode_users, encode_users
from runtime.ids import AbstractID
from runtime.jobgraph.codec import decode, decode_job_graph, encode
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobmaster.execution import ExecutionGraphSnapshot
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph
from runtime.protocol.checkpoints import CheckpointMetadata, JobManagerTaskRestore
from runtime.protocol.hand_over import VERSION
from runtime.protocol.query_snapshot import QuerySnapshot
from runtime.rest.connect.record import SessionRecord, decode_record
from runtime.taskexecutor.hand_over import HandOver
from runtime.taskexecutor.worker_files import Successor
from runtime.users.identities import ApiToken, User

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"
SHAPES = GOLDEN / "shapes.json"
LEVELS = GOLDEN / "levels.json"

DIGITS = "0123456789abcdef" * 2


def example(hint: Any, **changes: Any) -> Any:
    """Return a value of a type with every field filled in, the same each time; *changes* are fields of a dataclass."""
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = {field.name: example(hints[field.name]) for field in dataclasses.fields(hint) if field.init}
        return hint(**fields | changes)  # type: ignore[operator]  # a class, by the look at its fields
    arguments = typing.get_args(hint)
    match typing.get_origin(hint):
        case types.UnionType | typing.Union:
            return example(next(each for each in arguments if each is not type(None)))
        case origin if origin is tuple:
            return tuple(example(each) for each in arguments if each is not Ellipsis)
        case origin if origin is list:
            return [example(arguments[0])]
        case origin if origin is dict:
            return {example(arguments[0]): example(arguments[1])}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return list(hint)[-1]
    if isinstance(hint, type) and issubclass(hint, str):
        return hint(DIGITS if issubclass(hint, AbstractID) else "text")
    return {int: 7, float: 1.0, bool: True, bytes: b"bytes", Any: "anything"}[hint]


@dataclass(frozen=True, slots=True)
class StoredFormat:
    """One format.

    Args:
        name: of the format, and of its golden files.
        place: where a cluster keeps it.
        encoding: ``MessagePack`` or ``JSON``.
        level_format: its entry in the table of levels; None for a format whose stored values do not hold their version.
        value: an example.
        write: returns the stored form of a value.
        read: returns the value of a stored form; raises an exception if it cannot.
        refusal: what happens to a stored value that this release cannot read.
    """

    name: str
    place: str
    encoding: str
    level_format: Format | None
    value: Any
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    refusal: str

    @property
    def version(self) -> int:
        """Return the version that this release writes at its newest feature level."""
        return 1 if self.level_format is None else newest_version(self.level_format)

    @property
    def kind(self) -> type:
        """Return the type of its values."""
        return type(self.value)


def _from_file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """Return a function that reads a stored form from a file *name* in a directory."""

    def found(data: bytes) -> Any:
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, name).write_bytes(data)
            return read(Path(directory))

    return found


def _moved_back(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Undo that `read_checkpoint` has adapted the paths to where the checkpoint is now."""
    old, new = metadata.path, _CHECKPOINT.path
    tasks = tuple(
        dataclasses.replace(
            task, queries=tuple(dataclasses.replace(each, path=each.path.replace(old, new)) for each in task.queries)
        )
        for task in metadata.tasks
    )
    return dataclasses.replace(metadata, path=new, tasks=tasks)


def _write_cluster(descriptor: ClusterDescriptor) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        descriptor.write(Path(directory, CLUSTER_FILE), FeatureLevel(supported_levels().newest))
        return Path(directory, CLUSTER_FILE).read_bytes()


CLUSTER_FILE = "cluster.json"
USERS_FILE = "users.json"
_USERS = f"a Redis hash of the cluster, or the [file](#user-file) `{USERS_FILE}` of a cluster without Redis"
_JOB_STATE = "a Redis hash of the cluster, or the memory of a cluster without Redis"
_CHECKPOINT: CheckpointMetadata = example(CheckpointMetadata, path="/checkpoints/chk-7")
_CHECKPOINT = dataclasses.replace(
    _CHECKPOINT,
    tasks=tuple(
        dataclasses.replace(task, queries=(example(QuerySnapshot, path="/checkpoints/chk-7/query"),))
        for task in _CHECKPOINT.tasks
    ),
    format_version=newest_version(Format.COMPLETED_CHECKPOINT),
)

FORMATS = (
    StoredFormat(
        "job-graph",
        "high availability, state `jobgraphs`",
        "MessagePack",
        Format.JOB_GRAPH,
        example(JobGraph, format_version=newest_version(Format.JOB_GRAPH)),
        encode,
        decode_job_graph,
        "The job is not recovered. The master logs the reason, and keeps the state.",
    ),
    StoredFormat(
        "execution",
        "high availability, state `executions`: the progress of a job, for its next JobMaster",
        "MessagePack",
        Format.EXECUTION,
        example(ExecutionGraphSnapshot, format_version=newest_version(Format.EXECUTION)),
        encode,
        lambda data: decode(data, ExecutionGraphSnapshot),
        "The job's tasks start again, queries from their last checkpoint. The JobMaster logs the reason.",
    ),
    StoredFormat(
        "completed-checkpoint",
        "high availability, states of a job's checkpoints",
        "MessagePack",
        Format.COMPLETED_CHECKPOINT,
        _CHECKPOINT,
        encode,
        lambda data: decode(data, CheckpointMetadata),
        "The JobMaster uses the checkpoint before, and logs the reason.",
    ),
    StoredFormat(
        "checkpoint-metadata",
        f"`{METADATA}` in a checkpoint's directory",
        "JSON, with a digest of itself",
        Format.CHECKPOINT_METADATA,
        _CHECKPOINT,
        encode_metadata,
        _from_file(METADATA, lambda directory: _moved_back(read_checkpoint(directory))),
        "The command that reads the checkpoint fails, and names both versions.",
    ),
    StoredFormat(
        "savepoint",
        f"`{MANIFEST}` in a savepoint's directory",
        "JSON, with a digest of itself",
        Format.SAVEPOINT,
        example(Savepoint, format_version=newest_version(Format.SAVEPOINT), path=""),
        to_manifest,
        lambda data: from_manifest(Path("/savepoint"), data),
        "The command that reads the savepoint fails, and names both versions.",
    ),
    StoredFormat(
        "query-snapshot",
        f"`{DESCRIPTION}` of each query in a checkpoint's directory",
        "JSON",
        None,
        example(QuerySnapshot),
        lambda snapshot: json.dumps(to_plain(snapshot), indent=1).encode(),
        _from_file(DESCRIPTION, load_snapshot),
        "The task uses the checkpoint before.",
    ),
    StoredFormat(
        "file-list",
        f"`{FILES}` of each query in a checkpoint's directory",
        "JSON; the description holds its digest",
        None,
        example(dict[str, FileRecord]),
        encode_records,
        lambda data: decode_records(data, hashlib.sha256(data).hexdigest()),
        "The task uses the checkpoint before.",
    ),
    StoredFormat(
        "archived-job",
        "`*.job` in the archive of ended jobs",
        "MessagePack",
        None,
        example(ArchivedExecutionGraph),
        encode,
        lambda data: decode(data, ArchivedExecutionGraph),
        "The job is not listed. The Dispatcher logs the reason, and keeps the file.",
    ),
    StoredFormat(
        "job-entry",
        f"registry of jobs, in {_JOB_STATE}",
        "JSON",
        None,
        JobEntry(JobSchedulingStatus.DONE, {"status": "text"}, dirty=True),
        lambda entry: entry.to_json().encode(),
        lambda data: JobEntry.from_json(data.decode()),
        "The recovery of the cluster's jobs stops with an error that quotes the entry.",
    ),
    StoredFormat(
        "user",
        f"users and tokens, in {_USERS}",
        "JSON",
        None,
        example(User),
        lambda user: user.to_json().encode(),
        lambda data: User.from_json(data.decode()),
        "The cluster rejects the user's tokens. The Dispatcher logs the entry's name, and keeps it.",
    ),
    StoredFormat(
        "api-token",
        f"users and tokens, in {_USERS}",
        "JSON",
        None,
        example(ApiToken, token_id=DIGITS[:16], digest=DIGITS * 2, name="text"),
        lambda token: token.to_json().encode(),
        lambda data: ApiToken.from_json(data.decode()),
        "The cluster rejects the token. The Dispatcher logs the entry's name, and keeps it.",
    ),
    StoredFormat(
        "user-file",
        f"`{USERS_FILE}`, the map of users and tokens of a cluster without Redis",
        "JSON",
        None,
        StoredUsers({"user:text": example(User).to_json()}),
        lambda users: encode_users(users).encode(),
        lambda data: decode_users(data.decode(), USERS_FILE),
        "The master does not start. The error names the file.",
    ),
    StoredFormat(
        "state-handle",
        f"handle of each state of high availability, in {_JOB_STATE}",
        "JSON",
        None,
        example(StateHandle, path=f"text@dispatcher.e7.{DIGITS}"),
        lambda handle: handle.to_json().encode(),
        lambda data: StateHandle.from_json(data.decode()),
        "The state counts as damaged: see the formats of the states.",
    ),
    StoredFormat(
        "cluster",
        f"`{CLUSTER_FILE}` in the cluster's runtime directory",
        "JSON",
        Format.CLUSTER,
        example(ClusterDescriptor),
        _write_cluster,
        _from_file(CLUSTER_FILE, lambda directory: ClusterDescriptor.read(directory / CLUSTER_FILE)),
        "Each command fails, and asks for the version that started the cluster.",
    ),
    StoredFormat(
        "feature-level",
        f"the cluster's level, in {_JOB_STATE}",
        "JSON",
        None,
        7,
        lambda level: encode_level(level).encode(),
        lambda data: decode_level(data.decode()),
        "No master and no leader serves. Each names the level that it has found.",
    ),
    StoredFormat(
        "connect-session",
        "`record.json` of each named Spark Connect session, beside the states of high availability",
        "JSON",
        None,
        example(SessionRecord),
        lambda record: record.to_json().encode(),
        lambda data: decode_record(data.decode()),
        "Calls of the session fail, and name the file. `spark.stop()` removes it.",
    ),
    StoredFormat(
        "job-upgrade",
        "`.upgrades/ID/upgrade.json` in the cluster's directory of savepoints: the last `job upgrade` of a job",
        "JSON",
        None,
        example(Upgrade),
        encode_upgrade,
        decode_upgrade,
        "`job upgrade` of this job fails, and names the file and the remedy.",
    ),
    StoredFormat(
        "handover",
        "`taken-over/state.json` in the directory of a job's checkpoints: the state that a new version takes over",
        "JSON",
        None,
        example(JobManagerTaskRestore),
        encode_handover,
        decode_handover,
        "The new version fails, and the message names the file.",
    ),
    StoredFormat(
        "former-environment",
        "`run/upgraded-from.json` in the cluster's runtime directory, for `cluster upgrade --rollback`",
        "JSON",
        None,
        example(FormerEnvironment),
        FormerEnvironment.encode,
        FormerEnvironment.decode,
        "`--rollback` is refused: no upgrade is known. `--to` names the environment instead.",
    ),
    StoredFormat(
        "hand-over",
        "the memory of a zygote, from the end of a TaskExecutor that is exchanged until its successor adopts its tasks",
        "MessagePack",
        None,
        example(HandOver, version=VERSION),
        HandOver.encode,
        HandOver.decode,
        "The tasks end, and run again. `cluster upgrade` drains the TaskExecutor instead if it knows that before.",
    ),
    StoredFormat(
        "worker-successor",
        "`successor.json` in the directory of a worker, or of a host's part, that `cluster upgrade` exchanges",
        "JSON",
        None,
        example(Successor),
        Successor.encode,
        Successor.decode,
        "The worker stays as it is. It logs the reason, and starts its TaskExecutor again.",
    ),
    StoredFormat(
        "lease",
        "the lease on a query's checkpointLocation, a file beside it",
        "JSON",
        None,
        example(LeaseHolder),
        LeaseHolder.encode,
        LeaseHolder.decode,
        "The attempt waits until no process locks the file, and fails if that takes long.",
    ),
    StoredFormat(
        "blob-fence",
        "the highest leadership that has commanded a blob store",
        "JSON",
        None,
        example(FencingToken),
        encode_blob_fence,
        decode_blob_fence,
        "The blob server refuses to delete, and asks for the file to be removed.",
    ),
)


# ------------------------------------------------------------------------- shapes

Shape = dict[str, Any]
"""Types of a format, by name: the list of an enum's values, or the fields of a dataclass with their types.

A ``?`` at the end of a field's type says that it has a default.
"""


def shape_of(hint: Any) -> Shape:
    """Return the types that a type consists of."""
    found: Shape = {}
    _collect(hint, found)
    return dict(sorted(found.items()))


def _collect(hint: Any, found: Shape) -> None:
    for argument in typing.get_args(hint):
        _collect(argument, found)
    if not isinstance(hint, type) or hint.__name__ in found:
        return
    if issubclass(hint, Enum):
        found[hint.__name__] = [member.value for member in hint]
    elif dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = found[hint.__name__] = {}
        for field in dataclasses.fields(hint):
            has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
            fields[field.name] = _name_of(hints[field.name]) + ("?" if has_default else "")
            _collect(hints[field.name], found)


def _name_of(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " | ".join(_name_of(each) for each in arguments)
    if arguments:
        return f"{origin.__name__}[{', '.join(_name_of(each) for each in arguments)}]"
    if hint is Ellipsis:
        return "..."
    if isinstance(hint, type) and issubclass(hint, str) and not issubclass(hint, Enum):
        return "str"
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))


GROWING = frozenset({"Role"})
"""Enumerations that get further values at the same version of their format.

An earlier release takes a value that holds one for unreadable. What it then does (`StoredFormat.refusal`) grants
nothing.
"""


def incompatible(before: Shape, now: Shape) -> list[str]:
    """Return the changes of a format that an earlier or a later release cannot read; none if both can.

    A new field with a default is compatible, and so is a new type that only such fields use. So is a further value of
    one of `GROWING`.
    """
    problems = []
    for name, old in before.items():
        new = now.get(name)
        if isinstance(old, list):
            has_grown = name in GROWING and isinstance(new, list) and set(old) <= set(new)
            if new != old and not has_grown:
                problems.append(f"the values of {name} were {old}, and are {new}")
            continue
        if not isinstance(new, dict):
            problems.append(f"{name} is gone")
            continue
        for field, kind in old.items():
            if field not in new:
                problems.append(f"{name}.{field} is gone")
            elif new[field].rstrip("?") != kind.rstrip("?"):
                problems.append(f"{name}.{field} was {kind}, and is {new[field]}")
            elif kind.endswith("?") and not new[field].endswith("?"):
                problems.append(f"{name}.{field} has lost its default")
        problems += [
            f"{name}.{field} is new and has no default"
            for field, kind in new.items()
            if field not in old and not kind.endswith("?")
        ]
    return problems


def recorded() -> dict[str, Any]:
    """Return what ``shapes.json`` holds: version and types of each format, by its name."""
    found: dict[str, Any] = json.loads(SHAPES.read_text()) if SHAPES.exists() else {}
    return found


def current() -> dict[str, Any]:
    """Return what ``shapes.json`` should hold."""
    kinds = {item.name: dict[str, FileRecord] if item.name == "file-list" else item.kind for item in FORMATS}
    return {item.name: {"version": item.version, "types": shape_of(kinds[item.name])} for item in FORMATS}


def changes_without_version(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the incompatible changes of formats whose version is the same as before."""
    problems = []
    for name, old in before.items():
        if name not in now:
            problems.append(f"{name}: the format is gone; stored values of it could not be read")
        elif now[name]["version"] == old["version"]:
            problems += [f"{name}: {problem}" for problem in incompatible(old["types"], now[name]["types"])]
    return problems


def recorded_levels() -> dict[str, dict[str, int]]:
    """Return what ``levels.json`` holds: the version of each format at each level."""
    found: dict[str, dict[str, int]] = json.loads(LEVELS.read_text()) if LEVELS.exists() else {}
    return found


def current_levels() -> dict[str, dict[str, int]]:
    """Return what ``levels.json`` should hold."""
    return {str(level): {of.value: version for of, version in row.items()} for level, row in sorted(VERSIONS.items())}


def changed_levels(before: dict[str, dict[str, int]], now: dict[str, dict[str, int]]) -> list[str]:
    """Return the formats whose version at a known level is another one than before, or that the level has lost."""
    return [
        f"{name}: level {level} wrote version {version}, and writes {now[level].get(name)}"
        for level, row in before.items()
        if level in now
        for name, version in row.items()
        if now[level].get(name) != version
    ]


def golden_files() -> dict[Path, StoredFormat]:
    """Return the golden files of all releases."""
    by_name = {item.name: item for item in FORMATS}
    return {path: by_name[path.stem] for path in sorted(GOLDEN.glob("*/*")) if path.is_file()}


# ------------------------------------------------------------------------- page

_PAGE_HEAD = """\
# Stored formats

<!-- Written by `python -m tests.stored_formats --write`: change that, not this. -->

What a cluster stores beyond the life of its processes, and the version of each format. The test suite keeps golden
files: values of each format as each release wrote them. Every later release reads them.

A new field with a default keeps its format's version: earlier releases ignore the field, later ones fill it in. Every
other change of a format raises its version. A test compares the types with their recorded form, and fails otherwise.

A new value of `Role` keeps the version too. An earlier release cannot read a user with such a role. It rejects
their tokens, and keeps the user.

A `?` after a type says that the field has a default.

Everything that Spark writes (checkpoints of queries, tables) has Spark's own formats; see [Upgrading](upgrading.md).
"""


_LEVELS_HEAD = """
## Feature levels

The [feature level](upgrading.md#the-feature-level) of the cluster decides which version is written. A release reads the
versions of all its levels. A format without a stored version only gets new fields with a default, so it has one version
at all levels.
"""


def _levels_table() -> list[str]:
    """Return the table of the versions that each level writes."""
    levels = sorted(VERSIONS)
    lines = [
        "| format | " + " | ".join(f"level {level}" for level in levels) + " |",
        "| --- |" + " --- |" * len(levels),
    ]
    return lines + [
        f"| [{of.value}](#{of.value}) | " + " | ".join(str(VERSIONS[level][of]) for level in levels) + " |"
        for of in Format
    ]


def page() -> str:
    """Return the text of ``docs/formats.md``."""
    lines = [_PAGE_HEAD, "| format | version | encoding | place | golden files |", "| --- | --- | --- | --- | --- |"]
    releases = {
        item.name: [path.parent.name for path, found in golden_files().items() if found is item] for item in FORMATS
    }
    for item in FORMATS:
        mark = "" if item.level_format else ", not stored"
        golden = ", ".join(releases[item.name])
        lines.append(
            f"| [{item.name}](#{item.name}) | {item.version}{mark} | {item.encoding} | {item.place} | {golden} |"
        )
    lines += [_LEVELS_HEAD, *_levels_table()]
    for item in FORMATS:
        types_of = current()[item.name]["types"]
        lines += ["", f"## {item.name}", "", f"A value that cannot be read: {item.refusal}", ""]
        if not types_of:
            lines.append("A plain number.")
            continue
        lines += ["| type | fields or values |", "| --- | --- |"]
        for name, inner in types_of.items():
            if isinstance(inner, list):
                text = ", ".join(f"`{value}`" for value in inner)
            else:
                text = ", ".join(f"`{field}: {kind}`".replace("|", "\\|") for field, kind in inner.items())
            lines.append(f"| {name} | {text} |")
    return "\n".join(lines) + "\n"


PAGE = ROOT / "docs" / "formats.md"


def problems() -> list[str]:
    """Return what keeps the recorded shapes, the golden files or the page from fitting the code."""
    found = changes_without_version(recorded(), current())
    if found:
        return [f"{problem}: raise the version of the format, and keep reading the one before" for problem in found]
    found = changed_levels(recorded_levels(), current_levels())
    if found:
        return [f"{problem}: add a level for a new version" for problem in found]
    stale = []
    if recorded_levels() != current_levels():
        stale.append("tests/golden/levels.json")
    if recorded() != current():
        stale.append("tests/golden/shapes.json")
    stale += [
        f"tests/golden/{__version__}/{item.name}"
        for item in FORMATS
        if not any(GOLDEN.glob(f"{__version__}/{item.name}.*"))
    ]
    if not PAGE.exists() or PAGE.read_text() != page():
        stale.append("docs/formats.md")
    return [f"{each} is not up to date: run python -m tests.stored_formats --write" for each in stale]


def write() -> None:
    """Record shapes and page, and this release's golden files where they are missing or their format has changed."""
    before = recorded()
    for item in FORMATS:
        suffix = "json" if item.encoding.startswith("JSON") else "msgpack"
        path = GOLDEN / __version__ / f"{item.name}.{suffix}"
        if not path.exists() or before.get(item.name) != current()[item.name]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(item.write(item.value))
    LEVELS.write_text(json.dumps(current_levels(), indent=1) + "\n")
    SHAPES.write_text(json.dumps(current(), indent=1) + "\n")
    PAGE.write_text(page())


def main() -> int:
    """Write the files, or say what does not fit; the exit status is then 1."""
    found = changes_without_version(recorded(), current()) + changed_levels(recorded_levels(), current_levels())
    if "--write" in sys.argv and not found:
        write()
    found = problems()
    for problem in found:
        sys.stderr.write(problem + "\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
