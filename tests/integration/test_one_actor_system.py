"""The components of a cluster as actors: a user's actor finds, asks, watches them and hears of what becomes of them."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors import Actor, ActorNotFound, ActorSystem, Props, Subscribe, Subscribed, Terminated, UnhandledMessageError
from actors.receptionist import LeaderChanged
from runtime.protocol.events import JobReachedTerminalState, TaskExecutorLost
from tests.cluster_harness import Cluster
from tests.integration.actors_kit import PATIENT
from tests.job_files import write_job
from tests.waiting import PATIENCE_S

EVENTS = (JobReachedTerminalState, LeaderChanged, TaskExecutorLost)


class Listener(Actor):
    """Puts what it is told into a queue, and watches whom it is told to."""

    def __init__(self, heard: queue.Queue[Any], stream: str) -> None:
        self._heard = heard
        self._stream = stream

    def pre_start(self) -> None:
        for kind in EVENTS:
            self.context.actor_selection(self._stream).tell(Subscribe.to(kind))

    async def receive(self, message: Any) -> None:
        if isinstance(message, str):
            ref = await self.context.actor_selection(message).resolve_one(PATIENCE_S)
            self.context.watch(ref)
            self._heard.put(ref)
        else:
            self._heard.put(message)


@contextlib.contextmanager
def listening(cluster: Cluster) -> Iterator[tuple[ActorSystem, Any, Callable[..., Any], str]]:
    """An actor system with a listener: the system, the listener, what awaits a message, the cluster's address."""
    address = cluster.json("status")["cluster"]["address"].partition("/system/")[0]
    heard: queue.Queue[Any] = queue.Queue()

    def await_message(wanted: Callable[[Any], bool]) -> Any:
        while not wanted(told := heard.get(timeout=PATIENCE_S)):
            pass
        return told

    with ActorSystem("visitor", secret_file=cluster.directory / "secret", config=PATIENT) as system:
        listener = system.actor_of(Props(Listener, heard, f"{address}/system/event-stream").local(), "listener")
        for _ in EVENTS:
            await_message(lambda told: isinstance(told, Subscribed))
        yield system, listener, await_message, address


def test_a_users_actor_watches_the_dispatcher_and_hears_of_its_successor_a_lost_task_executor_and_the_end_of_a_job(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster()
    with listening(cluster) as (system, listener, await_message, address):
        listener.tell(f"{address}/user/dispatcher")
        ref = await_message(lambda told: hasattr(told, "path") and told.path == "/user/dispatcher")
        with pytest.raises(UnhandledMessageError, match="no use for a message of type str"):
            ref.ask("hello").result()
        job = cluster.json("job", "run", "--json", str(write_job(tmp_path, "print('ran')\n")))
        over = await_message(lambda told: isinstance(told, JobReachedTerminalState))
        assert (over.job_id, over.status) == (job["job_id"], "FINISHED")
        os.kill(cluster.pid_of("dispatcher"), signal.SIGKILL)
        ended = await_message(lambda told: isinstance(told, Terminated))
        assert ended.actor == ref
        assert ended.address_terminated
        leader = await_message(lambda told: isinstance(told, LeaderChanged) and told.path == "/user/dispatcher")
        assert leader.address != ref.origin
        again = system.actor_selection(f"{address}/user/dispatcher").resolve_one(PATIENCE_S).result()
        assert again != ref
        with pytest.raises(ActorNotFound):
            system.actor_selection(f"{address}/user/nobody").resolve_one(1).result()
        with cluster.client() as client:
            executor = client.task_managers()[0].registration
        os.kill(executor.pid, signal.SIGKILL)
        lost = await_message(lambda told: isinstance(told, TaskExecutorLost))
        assert lost.resource_id == str(executor.resource_id)
