"""Frames and specs of the control sockets."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.jobgraph import codec
from runtime.jobgraph.job_graph import JobKind, ShipStrategy
from runtime.spark.errors import WireError
from runtime.spark.spec import ClassicEndpoint, ConnectEndpoint, TaskSpec, VertexInput, VertexSpec
from runtime.spark.wire import MAX_FRAME, BlockingChannel, FrameReader, encode

MESSAGES = st.dictionaries(st.text(), st.none() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.binary())


@given(st.lists(MESSAGES, max_size=5), st.integers(1, 9))
def test_frames_come_out_as_they_went_in_however_they_are_cut(messages: list[dict[str, object]], cut: int) -> None:
    stream = b"".join(map(encode, messages))
    reader = FrameReader()
    found = [m for start in range(0, len(stream), cut) for m in reader.feed(stream[start : start + cut])]
    assert found == messages


@pytest.mark.parametrize("data", [(MAX_FRAME + 1).to_bytes(4, "big"), b"\0\0\0\1\xc1", b"\0\0\0\1\x07", b"\0\0\0\0"])
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        FrameReader().feed(data)


def test_channel_ends_with_its_peer() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel, peer = BlockingChannel(ours), BlockingChannel(theirs)
        peer.send({"type": "one"})
        peer.send({"type": "two"})
        theirs.shutdown(socket.SHUT_WR)
        assert [channel.receive(), channel.receive(), channel.receive()] == [{"type": "one"}, {"type": "two"}, None]


def test_spec_travels() -> None:
    spec = TaskSpec(
        job_id="j",
        job_name="job",
        attempt_id="a",
        task_name="task",
        kind=JobKind.PIPELINE,
        file="/x/job.py",
        work_dir="/x",
        vertices=(VertexSpec("v", "name", "f", (VertexInput("u", None, ShipStrategy.HASH, ("k",), 4),), "/r"),),
        parameters={"n": 1, "deep": {"list": [1, None, "x"]}},
        connect=ConnectEndpoint(1, "secret-token", "session"),
    )
    assert codec.decode(codec.encode(spec), TaskSpec) == spec
    assert codec.decode(codec.encode(spec), TaskSpec).connect is not None


def test_secrets_are_not_shown() -> None:
    endpoints = (ClassicEndpoint("n", 1, "s3cret", "tag"), ConnectEndpoint(1, "s3cret", "session"))
    assert "s3cret" not in repr(endpoints)


def test_python_path_of_py_files() -> None:
    spec = TaskSpec("j", "n", "a", "t", JobKind.SCRIPT, "f", "w", (), py_files=("/a/x.py", "/a/y.py", "/b/z.zip", "/c"))
    assert spec.python_path == ["/a", "/b/z.zip", "/c"]
