"""A stream from Kafka, by a Python data source: its offsets of several partitions go back and forth with the query."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pyarrow.parquet

from runtime.checkpoint.savepoint import open_savepoint
from tests.cluster_harness import Cluster, await_value
from tests.job_files import write_job
from tests.kafka_broker import PARTITIONS, KafkaBrokers
from tests.streaming_rows import files_of, unless_it_changes

# Each message is in the sink with its partition and offset, which name it for ever.
STREAM = """\
import sys
import confluent_kafka as kafka
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

servers, topic, sink, location = sys.argv[1:5]

class Clicks(DataSource):
    @classmethod
    def name(cls):
        return "clicks"

    def schema(self):
        return "partition INT, offset BIGINT, value STRING"

    def streamReader(self, schema):
        return ClicksReader(self.options["servers"], self.options["topic"])

class ClicksReader(DataSourceStreamReader):
    def __init__(self, servers, topic):
        self.servers, self.topic = servers, topic

    def consumer(self):
        return kafka.Consumer({"bootstrap.servers": self.servers, "group.id": "none", "enable.auto.commit": False})

    def ends(self):
        consumer = self.consumer()
        try:
            partitions = consumer.list_topics(self.topic, timeout=30).topics[self.topic].partitions
            return {
                str(number): consumer.get_watermark_offsets(kafka.TopicPartition(self.topic, number), timeout=30)[1]
                for number in partitions
            }
        finally:
            consumer.close()

    def initialOffset(self):
        return {}

    def latestOffset(self, start, limit):
        return {number: min(end, start.get(number, 0) + 20) for number, end in self.ends().items()}

    def reportLatestOffset(self):
        return self.ends()

    def partitions(self, start, end):
        ranges = ((number, start.get(number, 0), stop) for number, stop in sorted(end.items()))
        return [InputPartition(found) for found in ranges if found[1] < found[2]]

    def read(self, partition):
        number, position, stop = partition.value
        consumer = self.consumer()
        try:
            consumer.assign([kafka.TopicPartition(self.topic, int(number), position)])
            while position < stop:
                message = consumer.poll(1.0)
                if message is not None and message.error() is None:
                    position = message.offset() + 1
                    yield int(number), message.offset(), message.value().decode()
        finally:
            consumer.close()

spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(Clicks)
rows = spark.readStream.format("clicks").option("servers", servers).option("topic", topic).load()
writer = rows.writeStream.queryName("clicks").format("parquet").trigger(processingTime="200 milliseconds")
if location:
    writer = writer.option("checkpointLocation", location)
writer.start(sink).awaitTermination()
"""

TOPIC = "clicks"


def messages_of(sink: Path) -> Counter[tuple[int, int, str]]:
    """Return the messages in a sink, each with its partition and offset."""
    found: Counter[tuple[int, int, str]] = Counter()
    for path in files_of(sink):
        for row in pyarrow.parquet.read_table(path).to_pylist():
            found[row["partition"], row["offset"], row["value"]] += 1
    return found


def test_a_stream_from_kafka_is_killed_stopped_and_resumed_and_has_each_message_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    brokers, sink = KafkaBrokers(), tmp_path / "out"
    script = write_job(tmp_path, STREAM, "clicks.py")
    expected: Counter[tuple[int, int, str]] = Counter()

    def write(count: int) -> None:
        begin = expected.total() // PARTITIONS
        texts = [f"click {expected.total() + number}" for number in range(count)]
        brokers.write(TOPIC, texts)
        expected.update((number % PARTITIONS, begin + number // PARTITIONS, text) for number, text in enumerate(texts))

    def arrived() -> int:
        assert cluster.job(job_id)["state"] != "FAILED", cluster.run("job", "exceptions", job_id).stdout
        return (unless_it_changes(messages_of, sink) or Counter()).total()

    write(200)
    settings = ("-D", "execution.checkpointing.interval=1s", "-D", "restart-strategy.fixed-delay.delay=200ms")
    arguments = (brokers.servers, TOPIC, str(sink))
    job_id = cluster.submit(script, *arguments, str(tmp_path / "live"), options=settings)
    await_value(lambda: arrived() == expected.total())
    latest = lambda: (cluster.job(job_id)["checkpoints"]["latest_completed"] or {"id": 0})["id"]  # noqa: E731
    await_value(lambda: latest() > 0)

    # The task is killed while messages come: the query goes on from its offsets.
    write(200)
    (task,) = cluster.tasks_of(job_id)
    os.kill(task, signal.SIGKILL)
    write(200)
    await_value(lambda: arrived() == expected.total())
    assert messages_of(sink) == expected

    # The savepoint has the offset of each partition, and another job resumes from them.
    place = cluster.run("job", "stop", "--savepoint", str(tmp_path / "kept"), job_id).stdout.strip()
    (query,) = open_savepoint(Path(place)).queries
    assert [json.loads(offset) for offset in query.snapshot.offsets] == [
        {str(number): expected.total() // PARTITIONS for number in range(PARTITIONS)}
    ]
    write(100)
    resumed = cluster.submit(script, *arguments, "", options=("--from", place, *settings))
    await_value(lambda: arrived() == expected.total())
    assert messages_of(sink) == expected

    def lag() -> int | None:
        (query,) = cluster.job(resumed)["tasks"][0]["attempts"][-1]["queries"]
        return None if query["progress"] is None else int(query["progress"]["sources"][0]["lag"])

    await_value(lambda: lag() == 0)
    cluster.run("job", "cancel", resumed)
