"""A program with its own Spark, and an embedded cluster.

python examples/embedded.py --directory /tmp/embedded
spark-submit --master spark://host:7077 examples/embedded.py --directory /tmp/embedded

Its executors fetch a blob and ask an actor. The cluster supervises its streaming query: it repeats a batch that failed
once, and takes a savepoint while the query runs.
"""

import argparse
import json
import os
import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from runtime.embedded import EmbeddedCluster
from runtime.protocol.dispatcher import DispatcherGateway


def label_rows(spark, access):
    """Use a table of labels, stored as a blob, in a UDF; ask an actor from every partition."""
    key = access.put_blob(json.dumps({"0": "even", "1": "odd"}).encode())

    @udf("string")
    def label(number):
        return json.loads(access.get_blob(key))[str(number % 2)]

    def workers(_rows):
        yield access.actor("dispatcher", DispatcherGateway).request_cluster_overview().task_managers

    labelled = spark.range(10).repartition(2).select(label("id").alias("label")).groupBy("label").count()
    print("labels", {row["label"]: row["count"] for row in labelled.collect()})
    print("workers", spark.sparkContext.parallelize(range(4), 2).mapPartitions(workers).collect())
    access.delete_blob(key)


def count_batches(spark, cluster, directory):
    """Start an ordinary streaming query, which does not know of the cluster."""
    done, failed, enough = [], [], threading.Event()

    def collect(batch, number):
        if number == 2 and not failed:
            failed.append(number)
            raise RuntimeError("the third batch fails once")
        done.append((number, batch.count()))
        if number == 4:
            enough.set()

    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = (
        numbers.writeStream.queryName("numbers")
        .option("checkpointLocation", str(directory / "location"))
        .trigger(processingTime="300 milliseconds")
        .foreachBatch(collect)
        .start()
    )
    while not enough.is_set():
        query.awaitTermination(1)
    print("savepoint", cluster.savepoint(directory / "savepoints"))
    query.stop()
    print("batches", done[:5])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    directory = parser.parse_args().directory
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers would run the python3 of the PATH
    spark = SparkSession.builder.appName("embedded").config("spark.ui.enabled", "false").getOrCreate()
    with EmbeddedCluster(spark) as cluster:
        label_rows(spark, cluster.access())
        count_batches(spark, cluster, directory)
        print("job", cluster.job.status.value)
    print("spark goes on:", spark.range(3).count())
    spark.stop()


if __name__ == "__main__":
    main()
