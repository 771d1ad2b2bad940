"""``cluster.json``: the description of a running cluster and of its processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from actors.errors import WireError
from actors.rpc.codec import from_plain
from conf.files import write_private
from runtime.errors import RuntimeDirectoryError
from runtime.feature_level import FeatureLevel, Format, can_read, lowest_level


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process, identified so that a later process with the same number is not mistaken for it.

    Attributes:
        role: in the cluster: ``master``, ``taskmanager-0``, ``redis``, ...
        pid: its process id.
        start_ticks: when it started, in clock ticks since the start of the machine (field 22 of ``/proc/<pid>/stat``).
        boot_id: id of that start of the machine.
    """

    role: str
    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, role: str, pid: int) -> ProcessRecord:
        """Return the record of a running process. Raises ProcessLookupError if there is none."""
        ticks = _start_ticks(pid)
        if ticks is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(role, pid, ticks, _boot_id())

    def is_alive(self) -> bool:
        """Return whether exactly this process still runs; a zombie does not."""
        return self.boot_id == _boot_id() and _start_ticks(self.pid) == self.start_ticks


@dataclass(frozen=True, slots=True)
class ClusterDescriptor:
    """Addresses, directories and processes of a running cluster. Holds no secret.

    Attributes:
        cluster_id: ``cluster.id``.
        system_address: the master's actor system, ``akka.tcp://<system>@<host>:<port>``.
        started_ms: when it started, in milliseconds since 1970.
        runtime_dir: its runtime directory.
        log_dir: directory of the logs.
        socket_dir: directory of the Unix sockets; outside the runtime directory if that has too long a path.
        processes: the master first, then the processes that it had started when this was written.
        versions: versions by name: ``understudy``, ``python``, ``spark``, ``java``, ``redis``.
        addresses: further addresses by name: ``blob``, ``redis``, ...
        masters: the addresses of all masters' systems, including `system_address`.
    """

    cluster_id: str
    system_address: str
    started_ms: int
    runtime_dir: str
    log_dir: str
    socket_dir: str
    processes: tuple[ProcessRecord, ...]
    versions: dict[str, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    masters: tuple[str, ...] = ()

    def write(self, path: Path, level: FeatureLevel | None = None) -> None:
        """Replace the file atomically, with mode 0600.

        Args:
            path: of the file.
            level: of the cluster. Default: the lowest of this release.

        Raises:
            OSError: it cannot be written.
        """
        version = (level or lowest_level()).version_of(Format.CLUSTER)
        write_private(path, json.dumps({"format": version, **asdict(self)}, indent=2).encode() + b"\n")

    @classmethod
    def read(cls, path: Path) -> ClusterDescriptor:
        """Return the content of the file.

        Raises:
            FileNotFoundError, NotADirectoryError: there is no such file.
            RuntimeDirectoryError: it cannot be read, or another version wrote it.
        """
        try:
            values = json.loads(path.read_bytes())
            if not can_read(Format.CLUSTER, values.pop("format")):
                raise ValueError("it was written by another version")
            descriptor: ClusterDescriptor = from_plain(values, cls)
            return descriptor
        except (FileNotFoundError, NotADirectoryError):
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, WireError) as error:
            raise RuntimeDirectoryError(
                f"cannot read {path}: {error}", "stop the cluster with the version that started it, or remove the file"
            ) from error


def _start_ticks(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command in parentheses, which may contain any text: so count from its end.
    fields = stat.rpartition(b")")[2].split()
    # A process becomes a zombie when its first thread ends, but it has ended only when its last thread has.
    return None if fields[0] in (b"Z", b"X") and int(fields[17]) <= 1 else int(fields[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
