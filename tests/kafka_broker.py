"""Kafka's brokers for tests: those that librdkafka mocks, which speak Kafka's protocol on real sockets."""

from __future__ import annotations

from confluent_kafka import Producer

from tests.waiting import PATIENCE_S

PARTITIONS = 4
"""Partitions of a topic, as the mocked brokers make it when it is first asked for."""


class KafkaBrokers:
    """Brokers that end with this process, and a producer of messages.

    Args:
        brokers: how many.
    """

    def __init__(self, brokers: int = 2) -> None:
        self._producer = Producer({"bootstrap.servers": "mocked", "test.mock.num.brokers": brokers, "log_level": 3})
        known = self._producer.list_topics(timeout=PATIENCE_S).brokers.values()
        self.servers = ",".join(f"{broker.host}:{broker.port}" for broker in known)

    def write(self, topic: str, messages: list[str]) -> None:
        """Write messages to the partitions of a topic in turns, and wait until all are stored."""
        failed: list[object] = []
        for number, message in enumerate(messages):
            self._producer.produce(
                topic,
                message.encode(),
                partition=number % PARTITIONS,
                on_delivery=lambda error, _: failed.append(error),
            )
        assert self._producer.flush(PATIENCE_S) == 0
        assert failed == [None] * len(messages)
