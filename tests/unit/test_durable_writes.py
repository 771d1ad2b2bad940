"""Files are written by `conf.files`, which makes content and names durable. Other places are listed with a reason.

A place that is not listed fails here: use `write_private`, `private_file` or `rename_durably`, or say why a loss of
power does no harm.
"""

from __future__ import annotations

import ast
from collections import Counter

from tests.cluster_harness import ROOT

PACKAGES = ("actors", "runtime", "blob", "conf", "understudy")
HELPER = "conf/files.py"

SYNCED = "content and name are synced here, as this place needs"
REMOVAL = "what is to be removed gets another name first; a name that comes back is removed again"
ATTEMPT = "of one attempt, process or request, which a loss of power ends"
CACHE = "checked before use, or made again"
WORK = "part of a copy, which is written durably when all of it is there"
SET_ASIDE = "an older file of lines, which its writer has closed, gets another name"
MOVED = "a whole file gets another name; after a loss of power it has one of the two"
PLACE = "the same directory gets its former name back, or another one, in a copy"
DEVELOPERS = "a page of the checkout"
NO_FILE = "no file of a disk"

OTHERS: dict[str, tuple[int, str]] = {
    "actors/actor_system.py": (1, ATTEMPT),
    "actors/remote/endpoint.py": (1, NO_FILE),
    "actors/remote/root.py": (1, NO_FILE),
    "actors/testkit/deterministic.py": (1, NO_FILE),
    "blob/acceptor.py": (1, NO_FILE),
    "blob/client.py": (2, CACHE),
    "blob/file_store.py": (2, CACHE),
    "blob/storage.py": (3, SYNCED),
    "conf/reference.py": (1, DEVELOPERS),
    "runtime/checkpoint/files.py": (1, SYNCED),
    "runtime/checkpoint/remote_savepoint.py": (1, SYNCED),
    "runtime/checkpoint/rescale.py": (1, WORK),
    "runtime/checkpoint/restore.py": (1, PLACE),
    "runtime/checkpoint/savepoint.py": (2, SYNCED),
    "runtime/checkpoint/source_edit.py": (2, WORK),
    "runtime/checkpoint/state_evolution.py": (1, WORK),
    "runtime/checkpoint/stored_snapshot.py": (1, REMOVAL),
    "runtime/cluster/application_bootstrap.py": (1, ATTEMPT),
    "runtime/cluster/document_reference.py": (2, DEVELOPERS),
    "runtime/cluster/job_shadow.py": (1, ATTEMPT),
    "runtime/cluster/output.py": (1, NO_FILE),
    "runtime/dispatcher/endpoint.py": (1, NO_FILE),
    "runtime/embedded/cluster.py": (1, ATTEMPT),
    "runtime/history/directory.py": (1, MOVED),
    "runtime/history/figures.py": (1, SET_ASIDE),
    "runtime/jobmaster/checkpointing.py": (1, REMOVAL),
    "runtime/jobmaster/savepoints.py": (1, REMOVAL),
    "runtime/jobmaster/traces.py": (1, SET_ASIDE),
    "runtime/librarycache/builder.py": (1, CACHE),
    "runtime/librarycache/manager.py": (3, CACHE),
    "runtime/notebook/magic.py": (1, ATTEMPT),
    "runtime/notebook/submission.py": (2, ATTEMPT),
    "runtime/rest/handlers/submission.py": (1, ATTEMPT),
    "runtime/spark/driver/cds.py": (3, CACHE),
    "runtime/spark/driver/event_logs.py": (1, MOVED),
    "runtime/spark/driver/java.py": (1, ATTEMPT),
    "runtime/spark/driver/state_writer.py": (2, PLACE),
    "runtime/spark/function_task.py": (2, ATTEMPT),
    "runtime/spark/task/classic.py": (3, ATTEMPT),
    "runtime/spark/task/imports.py": (1, CACHE),
    "runtime/spark/task/program.py": (1, NO_FILE),
    "runtime/spark/task/rehearsal.py": (1, ATTEMPT),
    "runtime/spark/task/result_partition.py": (3, CACHE),
    "runtime/taskexecutor/control_groups.py": (2, NO_FILE),
    "runtime/taskexecutor/location_leases.py": (1, ATTEMPT),
    "runtime/taskexecutor/task.py": (3, ATTEMPT),
    "runtime/taskexecutor/task_pool.py": (1, ATTEMPT),
    "runtime/users/audit.py": (1, SET_ASIDE),
}


COPIES = ("shutil.copy", "shutil.copy2", "shutil.copytree")


def writes_in(source: str) -> int:
    """Count the calls in a module that create, overwrite or rename a file."""
    return sum(_writes(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))


def _writes(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    method = name.rpartition(".")[2]
    if method in ("write_text", "write_bytes", "rename", "copyfile", "move") or name in COPIES:
        return True
    if name == "os.open":  # logs and locks are opened for more than one writer
        return any(flag in ast.unparse(call) for flag in ("O_EXCL", "O_TRUNC"))
    if method == "replace":  # `str.replace` has two arguments, `dataclasses.replace` and `datetime.replace` keywords
        return name == "os.replace" or (len(call.args) == 1 and not call.keywords)
    if method in ("open", "fdopen"):
        modes = [*call.args[:2], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
        words = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
        return any(set(word) <= set("rwxbt+") and set(word) & set("wx+") for word in words)  # logs are appended to
    return False


def test_every_write_is_durable_or_has_a_reason() -> None:
    found = Counter[str]()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if count := writes_in(path.read_text()):
                found[str(path.relative_to(ROOT))] = count
    del found[HELPER]
    assert dict(found) == {path: count for path, (count, _) in OTHERS.items()}


def test_each_way_to_write_is_seen() -> None:
    ways = (
        "Path('x').write_text('')",
        "path.write_bytes(b'')",
        "open('x', 'w')",
        "path.open('xb')",
        "path.open(mode='r+b')",
        "os.fdopen(descriptor, 'wb')",
        "os.replace(a, b)",
        "part.replace(path)",
        "part.rename(path)",
        "shutil.move(a, b)",
        "shutil.copyfile(a, b)",
        "shutil.copytree(a, b)",
        "os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)",
        "os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)",
    )
    assert [way for way in ways if writes_in(way) != 1] == []
    harmless = (
        "open('name')",
        "os.open(path, os.O_RDONLY | os.O_CLOEXEC)",
        "os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)",
        "path.open('rb')",
        "text.replace('a', 'b')",
        "replace(it, dirty=True)",
        "at.replace(hour=1)",
    )
    assert [way for way in harmless if writes_in(way)] == []
