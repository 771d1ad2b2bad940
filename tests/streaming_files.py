"""A streaming query's files without Spark: written as Spark 4 writes them, and read as it reads them when it starts.

The state of a store is a number, to which each batch adds one of its own; each batch adds a file to the sink.
"""

from __future__ import annotations

import io
import json
import struct
import uuid
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.checkpoint.sink_log import place_of, uri_at
from runtime.protocol.query_snapshot import QueryLocation

PROVIDERS = ("hdfs", "rocksdb", "changelog", "unique")
COMPACT = 10


def write(path: Path, content: str | bytes) -> None:
    """A file as Spark's local file system writes it: under another name first, with a checksum beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content if isinstance(content, bytes) else content.encode()
    for name, written in ((path.name, data), (f".{path.name}.crc", checksums(data))):
        part = path.with_name(f".{name}.tmp")
        part.write_bytes(written)
        part.replace(path.with_name(name))


def checksums(content: bytes, block: int = 512) -> bytes:
    """What Hadoop's local file system writes beside a file."""
    sums = [zlib.crc32(content[start : start + block]) for start in range(0, len(content), block)]
    return struct.pack(f">4sI{len(sums)}I", b"crc\0", block, *sums)


def change(version: int, partition: int) -> int:
    """What the batch that makes a version adds to a partition's state."""
    return version * 1000 + partition


def truth(version: int, partition: int) -> int:
    return sum(change(number, partition) for number in range(1, version + 1))


@dataclass
class StreamingFiles:
    """One query. `provider` is one of `PROVIDERS`; its operators have these stores in each of their partitions.

    If `url` is given, the sink's log names its files below it, as if `root` were served there.
    """

    root: Path
    provider: str = "hdfs"
    operators: tuple[tuple[str, ...], ...] = (("default",),)
    partitions: int = 2
    query_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    next_batch: int = 0
    url: str = ""
    name: str = "counts"
    upstream: StreamingFiles | None = None

    def __post_init__(self) -> None:
        write(self.location / "metadata", json.dumps({"id": self.query_id}))

    @property
    def location(self) -> Path:
        return self.root / "checkpoint"

    @property
    def sink(self) -> Path:
        return self.root / "out dir"

    @property
    def query(self) -> QueryLocation:
        return QueryLocation(self.name, str(self.location), str(self.sink))

    def run(self, batches: int = 1, whole: Iterable[int] = ()) -> None:
        """Run some batches; of the versions in *whole*, counted from now, whole state is written too."""
        for number in range(batches):
            self.plan()
            self.commit(whole=number in whole)

    def plan(self) -> None:
        """The first half of a batch: offsets, state and output, without the commit."""
        batch = self.next_batch
        self._log(self.location / "sources" / "0", batch, *self._input(batch))
        head = json.dumps({"batchWatermarkMs": batch, "conf": {"spark.sql.shuffle.partitions": str(self.partitions)}})
        write(self.location / "offsets" / str(batch), f'v1\n{head}\n{{"logOffset":{batch}}}\n{{"x":{batch}}}')
        if batch == 0:
            write(self.location / "sources" / "1" / "0", '{"x":0}')

    def commit(self, *, whole: bool = False) -> None:
        """The second half."""
        batch = self.next_batch
        ids = [self._states(operator, stores, batch + 1, whole) for operator, stores in enumerate(self.operators)]
        part = self.sink / f"part-{batch:05}-{uuid.uuid4()}.parquet"
        write(part, f"rows of {batch}")
        changed = part.stat().st_mtime_ns // 1_000_000
        uri = uri_at(f"{self.url or self.root}/{self.sink.name}/{part.name}")
        entry = {"path": uri, "modificationTime": changed, "action": "add"}
        self._log(self.sink / "_spark_metadata", batch, entry)
        named = {"stateUniqueIds": {str(n): value for n, value in enumerate(ids)}} if self.provider == "unique" else {}
        write(self.location / "commits" / str(batch), "v1\n" + json.dumps({"nextBatchWatermarkMs": batch, **named}))
        self.next_batch += 1

    def purge(self, kept: int = 2) -> None:
        """Delete what Spark may delete when it keeps *kept* batches, and what compacted logs hold."""
        oldest = self.next_batch - kept
        for log in ("offsets", "commits"):
            for path in (self.location / log).iterdir():
                if path.name.isdigit() and int(path.name) < oldest:
                    self.delete(path)
        for log_dir in (self.location / "sources" / "0", self.sink / "_spark_metadata"):
            compact = [int(path.name.removesuffix(".compact")) for path in log_dir.glob("*.compact")]
            for path in log_dir.iterdir():
                if path.name[0].isdigit() and compact and int(path.name.removesuffix(".compact")) < max(compact):
                    self.delete(path)
        for store in {path.parent for path in self.location.glob("state/*/*/**/[0-9]*.*") if "SSTs" not in path.parts}:
            numbers = {path: int(path.name.split(".")[0].split("_")[0]) for path in store.glob("[0-9]*.*")}
            wholes = [n for path, n in numbers.items() if path.suffix in (".zip", ".snapshot") and n <= oldest + 1]
            for path, number in numbers.items():
                if wholes and number < max(wholes):
                    self.delete(path)
            used = {name for path in store.glob("*.zip") for name in _ssts(path.read_bytes())}
            for path in store.glob("SSTs/*.sst"):
                if path.name not in used:
                    self.delete(path)

    def delete(self, path: Path) -> None:
        """Delete a file as Hadoop does, with its checksums."""
        path.unlink(missing_ok=True)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def _input(self, batch: int) -> list[dict[str, object]]:
        """What the file source has for a batch: a file of its own, or all that is new in the log of another sink."""
        if self.upstream is None:
            return [{"path": f"file:///in/{batch}", "batchId": batch}]
        log, sources = self.upstream.sink / "_spark_metadata", self.location / "sources" / "0"
        last = max((int(path.name.split(".")[0]) for path in log.glob("[0-9]*")), default=-1)
        known = {entry["path"] for entry in read_log(sources, batch - 1)}
        new = [entry for entry in read_log(log, last) if entry["path"] not in known]
        return [{"path": one["path"], "timestamp": one["modificationTime"], "batchId": batch} for one in new]

    def _log(self, directory: Path, batch: int, *logged: dict[str, object]) -> None:
        lines = [json.dumps(entry) for entry in logged]
        if batch % COMPACT == COMPACT - 1:
            lines = [json.dumps(old) for old in read_log(directory, batch - 1)] + lines
            write(directory / f"{batch}.compact", "\n".join(["v1", *lines]))
        else:
            write(directory / str(batch), "\n".join(["v1", *lines]))

    def _states(self, operator: int, stores: tuple[str, ...], version: int, whole: bool) -> list[list[str]]:
        root = self.location / "state" / str(operator)
        infos = [{"storeName": name, "numColsPrefixKey": 0, "numPartitions": self.partitions} for name in stores]
        info = {"operatorInfo": {"operatorId": operator, "operatorName": "save"}, "stateStoreInfo": infos}
        if version == 1:
            write(root / "_metadata" / "metadata", "v1\n" + json.dumps(info))
        ids = []
        for partition in range(self.partitions):
            ids.append([str(uuid.uuid4()) for _ in stores])
            for store, unique_id in zip(stores, ids[-1], strict=True):
                place = root / str(partition) if store == "default" else root / str(partition) / store
                name = f"{version}_{unique_id}" if self.provider == "unique" else str(version)
                self._version(place, name, version, partition, whole)
        return ids

    def _version(self, place: Path, name: str, version: int, partition: int, whole: bool) -> None:
        if self.provider != "rocksdb":
            write(
                place / f"{name}.{'delta' if self.provider == 'hdfs' else 'changelog'}", str(change(version, partition))
            )
        if self.provider == "hdfs" and whole:
            write(place / f"{name}.snapshot", str(truth(version, partition)))
        if self.provider == "rocksdb" or (self.provider != "hdfs" and whole):
            older = sorted(path.name for path in place.glob("SSTs/*.sst"))
            names = [*older[-2:], f"{version:06}-{uuid.uuid4()}.sst"]
            write(place / "SSTs" / names[-1], f"sorted {version}")
            sizes = {name: (place / "SSTs" / name).stat().st_size for name in names}
            write(place / f"{name}.zip", _zip(sizes, truth(version, partition)))


def _zip(sizes: dict[str, int], state: int) -> bytes:
    buffer = io.BytesIO()
    files = [{"localFileName": name[:6], "dfsSstFileName": name, "sizeBytes": size} for name, size in sizes.items()]
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": files, "numKeys": 1}))
        archive.writestr("state", str(state))
    return buffer.getvalue()


def _ssts(content: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        metadata = json.loads(archive.read("metadata").decode().split("\n", 1)[1])
    return [file["dfsSstFileName"] for file in metadata["sstFiles"]]


def read_log(directory: Path, last: int) -> list[dict[str, Any]]:
    """All entries of a compacted log, as Spark reads them. Raises AssertionError if some are missing."""
    compact = [int(path.name.split(".")[0]) for path in directory.glob("*.compact")]
    first = max((number for number in compact if number <= last), default=-1)
    paths = [directory / f"{first}.compact"] * (first >= 0)
    paths += [directory / str(number) for number in range(first + 1, last + 1)]
    assert all(path.exists() for path in paths), paths
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()[1:]]


def read_state(place: Path, version: int) -> int:
    """A version of a store's state, as Spark's providers load it. Raises AssertionError if files are missing."""
    number = version
    while number > 0:
        for path in [*place.glob(f"{number}.snapshot"), *place.glob(f"{number}.zip"), *place.glob(f"{number}_*.zip")]:
            if path.suffix == ".snapshot":
                return int(path.read_text()) + _changes(place, number, version)
            assert all((place / "SSTs" / name).exists() for name in _ssts(path.read_bytes())), path
            with zipfile.ZipFile(path) as archive:
                return int(archive.read("state")) + _changes(place, number, version)
        number -= 1
    return _changes(place, 0, version)


def _changes(place: Path, base: int, version: int) -> int:
    total = 0
    for number in range(base + 1, version + 1):
        paths = [path for path in place.glob(f"{number}[._]*") if path.suffix in (".delta", ".changelog")]
        assert len(paths) == 1, (place, number)
        total += int(paths[0].read_text())
    return total


def start(location: Path, sink: Path | None = None) -> int:
    """What Spark does when it starts a query: read all that it needs. Returns the batch that it goes on after.

    Raises AssertionError if something is missing, or the state is not that of the batch.
    """
    json.loads((location / "metadata").read_text())["id"]
    offsets = [int(path.name) for path in location.glob("offsets/[0-9]*")]
    commits = [int(path.name) for path in location.glob("commits/[0-9]*")]
    if not offsets:
        assert not commits
        return -1
    assert max(offsets) - 1 in (*offsets, -1), offsets
    batch = max(commits, default=-1)
    for log_offset in range(max(offsets) + 1):
        assert any(entry["batchId"] == log_offset for entry in read_log(location / "sources" / "0", max(offsets)))
    for operator in location.glob("state/*"):
        info = json.loads((operator / "_metadata" / "metadata").read_text().split("\n", 1)[1])
        for store in info["stateStoreInfo"]:
            for partition in range(store["numPartitions"]):
                place = operator / str(partition) / ("" if store["storeName"] == "default" else store["storeName"])
                assert read_state(place, batch + 1) == truth(batch + 1, partition)
    if sink is not None:
        read_log(sink / "_spark_metadata", batch)
    return batch


def rows(sink: Path) -> list[str]:
    """What a reader of the sink sees, in the order of the batches."""
    log = sink / "_spark_metadata"
    last = max((int(path.name.split(".")[0]) for path in log.glob("[0-9]*")), default=-1)
    places = [place_of(entry["path"]) for entry in read_log(log, last)]
    return [(sink / Path(place).name if "://" in place else Path(place)).read_text() for place in places]
