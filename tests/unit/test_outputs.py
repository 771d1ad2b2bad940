"""What the processes of a machine print does not fill its disk."""

from __future__ import annotations

import asyncio
import fcntl
import stat
from pathlib import Path

import pytest

from actors.address import ActorAddress
from conf.configuration import Configuration
from runtime.environment.context import ComponentContext, bound_outputs, cut_outputs
from runtime.environment.directory import ClusterDirectory


def test_what_is_printed_is_bounded_while_a_process_writes_on(tmp_path: Path) -> None:
    output = tmp_path / "worker.out"
    output.write_bytes(b"".join(b"%d" % number * 99 + b"\n" for number in range(8)))
    assert cut_outputs(tmp_path, 800) == []
    with output.open("ab") as later:
        later.write(b"late\n")
        later.flush()
        assert cut_outputs(tmp_path, 800) == ["worker.out"]
        assert output.read_bytes() == b""
        later.write(b"more\n")
    assert output.read_bytes() == b"more\n", "it is written to where it ends now, not behind a hole"
    aside = tmp_path / "worker.out.1"
    assert (aside.stat().st_size, stat.S_IMODE(aside.stat().st_mode)) == (800, 0o600)
    assert aside.read_bytes().endswith(b"7" * 99 + b"\nlate\n")
    assert cut_outputs(tmp_path, 4) == ["worker.out"]
    assert aside.read_bytes() == b"ore\n", "one is kept"


def test_files_of_others_and_one_that_is_being_cut_stay(tmp_path: Path) -> None:
    for name in ("a.log", "b.out", "c.out.1"):
        (tmp_path / name).write_bytes(b"0123456789")
    with (tmp_path / "b.out").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert cut_outputs(tmp_path, 4) == []
    assert cut_outputs(tmp_path, 4) == ["b.out"]
    assert [(tmp_path / name).stat().st_size for name in ("a.log", "b.out", "b.out.1", "c.out.1")] == [10, 0, 4, 10]


async def test_they_are_looked_at_again_and_again_whatever_happens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = ClusterDirectory(tmp_path)
    directory.create()
    (directory.log / "link.out").symlink_to("nowhere")  # cannot be opened
    configuration = Configuration.from_dict({"env.log.max-size": "64 kb"})
    context = ComponentContext(configuration, directory, ActorAddress.parse("akka.tcp://x@127.0.0.1:1/system/r"))
    task = asyncio.ensure_future(bound_outputs(context, 0.001))
    while "cannot be kept within env.log.max-size" not in caplog.text:  # noqa: ASYNC110  # a log tells nobody
        await asyncio.sleep(0.001)
    (directory.log / "link.out").unlink()
    (directory.log / "a.out").write_bytes(bytes(65537))
    while (directory.log / "a.out").stat().st_size:
        assert not task.done()
        await asyncio.sleep(0.001)
    task.cancel()
    assert (directory.log / "a.out.1").stat().st_size == 65536
