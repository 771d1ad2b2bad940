"""Settings of Spark that ``spark.table-format`` stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.configuration import Configuration
from conf.errors import ConfigurationError
from runtime.spark.driver.launch import spark_version
from runtime.spark.driver.table_formats import with_table_format
from runtime.taskexecutor.driver_choice import settings_in
from runtime.taskexecutor.spark_options import driver_options, job_settings

CATALOG = "spark.sql.catalog.spark_catalog"


def expand(settings: dict[str, str]) -> dict[str, str]:
    return with_table_format(settings, "4.3.0", "/house")


def test_settings_without_a_format_stay() -> None:
    assert expand({"spark.a": "b", "spark.table-format": ""}) == {"spark.a": "b"}


def test_delta() -> None:
    assert expand({"spark.table-format": "delta:4.4.1", "spark.a": "b"}) == {
        "spark.a": "b",
        "spark.jars.packages": "io.delta:delta-spark_4.3_2.13:4.4.1",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        CATALOG: "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


def test_iceberg() -> None:
    assert expand({"spark.table-format": "iceberg:1.11.0"}) == {
        "spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime-4.3_2.13:1.11.0",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        CATALOG: "org.apache.iceberg.spark.SparkSessionCatalog",
        f"{CATALOG}.type": "hadoop",
        f"{CATALOG}.warehouse": "/house/iceberg",
    }


@pytest.mark.parametrize("kind", [f"{CATALOG}.type", f"{CATALOG}.catalog-impl"])
def test_a_catalog_of_the_users_own_stays(kind: str) -> None:
    found = expand({"spark.table-format": "iceberg", kind: "hive", f"{CATALOG}.uri": "thrift://h"})
    assert found[kind] == "hive"
    assert f"{CATALOG}.warehouse" not in found
    found = expand({"spark.table-format": "iceberg", CATALOG: "org.example.Mine"})
    assert found[CATALOG] == "org.example.Mine"
    assert f"{CATALOG}.type" not in found


def test_a_format_without_a_version_brings_no_package() -> None:
    assert "spark.jars.packages" not in expand({"spark.table-format": "delta"})


def test_packages_and_extensions_of_the_users_own_stay() -> None:
    found = expand(
        {
            "spark.table-format": "delta:4.4.1",
            "spark.jars.packages": "a:b:1",
            "spark.sql.extensions": "org.example.Mine",
        }
    )
    assert found["spark.jars.packages"] == "a:b:1,io.delta:delta-spark_4.3_2.13:4.4.1"
    assert found["spark.sql.extensions"] == "org.example.Mine,io.delta.sql.DeltaSparkSessionExtension"
    assert expand({**found, "spark.table-format": "delta:4.4.1"}) == found, "twice is once"
    other = {"spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0"}
    assert expand({**other, "spark.table-format": "delta:4.4.1"})["spark.jars.packages"] == other["spark.jars.packages"]


def test_a_driver_of_a_cluster_with_a_format(tmp_path: Path) -> None:
    """A job that names the format too finds its settings there, and shares the driver."""
    configuration = Configuration.from_dict(
        {"cluster.runtime-dir": str(tmp_path), "spark.table-format": "iceberg:1.11.0"}
    )
    options = driver_options(configuration, tmp_path, tmp_path / "log")
    job = job_settings({"spark.table-format": "iceberg:1.11.0"}, tmp_path)
    assert job.items() <= options.conf.items()
    assert job[f"{CATALOG}.warehouse"] == str(tmp_path / "warehouse" / "iceberg")
    assert options.packages is not None
    version = ".".join(spark_version().split(".")[:2])
    assert options.packages.coordinates == f"org.apache.iceberg:iceberg-spark-runtime-{version}_2.13:1.11.0"


def test_a_format_in_the_text_of_a_script(tmp_path: Path) -> None:
    found = settings_in("b.config('spark.table-format', 'delta')")
    assert job_settings(found, tmp_path)["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"
    with pytest.raises(ConfigurationError, match="expected delta or iceberg"):
        job_settings({"spark.table-format": "parquet"}, tmp_path)
