"""A log of events in partitions, and a Spark data source that reads it as a stream: Kafka's model, in plain files.

python event_log.py LOG --events 3000 --per-second 300

appends orders to LOG/0, LOG/1 and LOG/2. Partition and offset, here the position in bytes, name an event for ever.
To read a broker, let `EventLogReader` ask its client for the latest offsets, and for the events between two of them.
"""

import argparse
import json
import time
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition


class EventLog(DataSource):
    """`spark.readStream.format("event-log").load(LOG)`, after `spark.dataSource.register(EventLog)`."""

    @classmethod
    def name(cls):
        return "event-log"

    def schema(self):
        return "partition INT, offset BIGINT, value STRING"

    def streamReader(self, schema):
        return EventLogReader(Path(self.options["path"]))


class EventLogReader(DataSourceStreamReader):
    """Plans each batch from the offsets of all partitions. Spark writes them to the query's checkpoint first."""

    def __init__(self, log):
        self.log = log

    def initialOffset(self):
        return {}  # a partition begins at 0, also one that is added later

    def latestOffset(self, start, limit):
        return {path.name: end_of(path) for path in self.log.iterdir()}

    def reportLatestOffset(self):
        """Return the newest offsets, for the lag that `job info` shows."""
        return self.latestOffset(None, None)

    def partitions(self, start, end):
        ranges = ((name, start.get(name, 0), stop) for name, stop in sorted(end.items()))
        return [InputPartition(found) for found in ranges if found[1] < found[2]]

    def read(self, partition):
        name, position, stop = partition.value
        with (self.log / name).open("rb") as events:
            events.seek(position)
            while (position := events.tell()) < stop:
                yield int(name), position, events.readline().decode()


def end_of(path):
    """Return the position behind the last complete event: one that is half written is left to the next batch."""
    with path.open("rb") as events:
        start = max(0, path.stat().st_size - 4096)
        events.seek(start)
        return start + events.read().rfind(b"\n") + 1


def main():
    parser = argparse.ArgumentParser(description="Append orders to a log.")
    parser.add_argument("log", type=Path)
    parser.add_argument("--events", type=int, default=1000, help="how many (default: 1000)")
    parser.add_argument("--per-second", type=float, default=float("inf"), help="how fast (default: all at once)")
    options = parser.parse_args()
    options.log.mkdir(parents=True, exist_ok=True)
    partitions = [(options.log / str(number)).open("ab", buffering=0) for number in range(3)]
    for number in range(options.events):
        customer = number * 7 % 50
        order = {"customer": customer, "cents": number * 37 % 20_000, "country": ("DK", "FR", "JP")[customer % 3]}
        partitions[customer % 3].write(json.dumps(order).encode() + b"\n")
        time.sleep(1 / options.per_second)


if __name__ == "__main__":
    main()
