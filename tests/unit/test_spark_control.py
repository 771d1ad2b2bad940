"""How a cancel gets into the code that runs on the main thread."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from runtime.spark.errors import TaskCancelled
from runtime.spark.task.control import Cancellation
from tests.waiting import PATIENCE_S


@pytest.fixture
def cancellation(no_interrupt_is_lost: None) -> Iterator[Cancellation]:
    before = signal.getsignal(signal.SIGTERM)
    cancellation = Cancellation()
    cancellation.install()
    yield cancellation
    cancellation.close()
    signal.signal(signal.SIGTERM, before)


def request(cancellation: Cancellation) -> None:
    threading.Thread(target=cancellation.request, daemon=True).start()


def test_interrupts_what_blocks_after_spark_was_stopped(cancellation: Cancellation) -> None:
    stopped = threading.Event()
    cancellation.on_request(stopped.set)

    def block() -> None:
        request(cancellation)
        threading.Event().wait(PATIENCE_S)

    with pytest.raises(TaskCancelled):
        block()
    assert stopped.is_set()


def test_waits_for_the_return_of_a_call_into_the_jvm(cancellation: Cancellation) -> None:
    reached = []
    cancellation.on_request(lambda: None)

    def call() -> None:
        with cancellation.call():
            request(cancellation)
            assert cancellation.requested.wait(PATIENCE_S)
            time.sleep(0.1)  # long enough for a signal to come in
            reached.append("the call's return")

    with pytest.raises(TaskCancelled):
        call()
    assert reached == ["the call's return"]


def test_a_signal_from_outside_is_a_cancel(cancellation: Cancellation) -> None:
    stopped = threading.Event()
    cancellation.on_request(stopped.set)

    def be_signalled() -> None:
        signal.raise_signal(signal.SIGTERM)
        threading.Event().wait(PATIENCE_S)

    with pytest.raises(TaskCancelled):
        be_signalled()
    assert stopped.is_set()


def test_a_cancel_that_came_first_is_raised_when_spark_is_there(cancellation: Cancellation) -> None:
    cancellation.requested.set()
    with pytest.raises(TaskCancelled):
        cancellation.on_request(lambda: None)


def test_nothing_is_raised_once_the_users_code_is_over(cancellation: Cancellation) -> None:
    cancellation.close()
    cancellation.request()
    signal.raise_signal(signal.SIGTERM)
    cancellation.checkpoint()
