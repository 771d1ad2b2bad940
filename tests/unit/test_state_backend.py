"""Which state store a configuration gives to Spark."""

from __future__ import annotations

from pathlib import Path

from conf.configuration import Configuration
from runtime.taskexecutor.spark_options import driver_options

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


def conf(**values: str) -> dict[str, str]:
    configuration = Configuration.from_dict({key.replace("_", "."): value for key, value in values.items()})
    return dict(driver_options(configuration, Path("/w"), Path("/w/log")).conf)


def test_the_backend_is_mapped_to_sparks_provider() -> None:
    assert conf()[PROVIDER].endswith(".HDFSBackedStateStoreProvider")
    rocks = conf(state_backend_type="rocksdb")
    assert rocks[PROVIDER].endswith(".RocksDBStateStoreProvider")
    assert rocks[CHANGELOG] == "true"
    assert conf(state_backend="rocksdb")[PROVIDER].endswith(".RocksDBStateStoreProvider"), "Flink's former key"


def test_sparks_own_settings_come_first() -> None:
    configuration = Configuration.from_dict({"state.backend.type": "rocksdb", CHANGELOG: "false", PROVIDER: "mine"})
    options = driver_options(configuration, Path("/w"), Path("/w/log"))
    assert (options.conf[PROVIDER], options.conf[CHANGELOG]) == ("mine", "false")
