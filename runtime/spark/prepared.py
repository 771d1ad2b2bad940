"""A task process that is made ready before it is known what it will run. It runs one task, and never a second.

It opens its way into Spark (a Connect session, or a Py4J gateway) and runs a trivial query on it, tells `ready`, and
waits on its control socket for `run` with a task's spec, to which it answers `started`. From there it is as one that
was forked for that task. Until then its output goes to the zygote's log; it ends when its owner closes the socket.
"""

from __future__ import annotations

from typing import Any

from runtime.spark.spec import PreparedSpec, decode_spec
from runtime.spark.task import run_task
from runtime.spark.wire import BlockingChannel


def run_prepared(spec: PreparedSpec, channel: BlockingChannel) -> int:
    """Make this freshly forked process ready, and run the task that comes; return its exit status."""
    opened = _open(spec)
    channel.send({"type": "ready"})
    message = channel.receive()
    if message is None:
        return 0  # nobody needed it
    task = decode_spec(message["spec"])
    channel.send({"type": "started"})
    return run_task(task, channel, opened)


def _open(spec: PreparedSpec) -> Any:
    if spec.connect is not None:
        from runtime.spark.pipeline import open_session

        session = open_session(spec.connect)
        session.sql("VALUES (1)").collect()  # runs no Spark job, so it needs none of the cores that tasks may hold
        return session
    if spec.classic is None:
        raise ValueError("a process is to be made ready for neither way into Spark")
    from runtime.spark.classic import connect

    gateway = connect(spec.classic)
    # No Spark job: it would wait for cores that tasks hold, and be counted among the task's.
    gateway.entry_point.get(0).sql("VALUES (1)").collect()
    return gateway
