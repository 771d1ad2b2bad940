"""Spark's master URL: whom it names, whether that answers, and what a driver tells of itself."""

from __future__ import annotations

import socket

import pytest

from conf.configuration import Configuration
from conf.errors import ConfigurationError
from conf.options import SparkOptions
from runtime.spark.driver import launch as masters
from runtime.spark.driver.launch import addresses, check_master, network_conf
from runtime.spark.errors import DriverStartError

ELSEWHERE = "spark://spark.example:7077"


def test_the_addresses_of_masters() -> None:
    assert addresses("spark://a:7077,b:7078") == [("a", 7077), ("b", 7078)]
    assert addresses("k8s://https://api.example:6443") == [("api.example", 6443)]
    assert addresses("k8s://api.example") == [("api.example", 443)]
    assert addresses("k8s://http://127.0.0.1") == [("127.0.0.1", 80)]
    assert addresses("yarn") == addresses("local[2]") == []


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,3]", "spark://a:1,b:2", "yarn", "k8s://https://a"])
def test_masters_that_are_taken(master: str) -> None:
    assert Configuration.from_dict({"spark.master": master}).get(SparkOptions.MASTER) == master


@pytest.mark.parametrize(
    "master", ["local[0]", "local[x]", "spark://a", "spark://a:b", "k8s://", "mesos://a:1", "yarn "]
)
def test_nonsense_is_refused_with_what_is_expected(master: str) -> None:
    with pytest.raises(ConfigurationError, match=r"spark\.master.*spark://HOST:PORT, yarn or k8s://URL"):
        Configuration.from_dict({"spark.master": master})


def test_one_master_that_answers_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "answers" in check_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    with pytest.raises(DriverStartError, match=rf"{port}: Connection refused.*-D spark\.master=URL"):
        check_master(f"spark://127.0.0.1:{port}")
    assert check_master("local[*]") == "local[*]"


def test_yarn_needs_hadoops_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(DriverStartError, match="HADOOP_CONF_DIR"):
        check_master("yarn")
    monkeypatch.setenv("YARN_CONF_DIR", "/etc/hadoop")
    assert check_master("yarn") == "yarn"
    assert masters.configuration_directories("yarn") == ["/etc/hadoop"]
    assert masters.configuration_directories("local") == []


def test_a_driver_is_private_where_its_executors_are_here() -> None:
    local = network_conf("local[2]", {"spark.driver.host": "10.0.0.1", "spark.authenticate": "false"})
    assert local == {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.authenticate": "true",
    }
    beside = network_conf("spark://127.0.0.1:7077", {})
    assert beside == {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def test_a_driver_that_others_reach_is_authenticated() -> None:
    host = {"spark.driver.host": "10.0.0.1"}
    with pytest.raises(DriverStartError, match=r"10\.0\.0\.1.*spark\.authenticate\.secret"):
        network_conf(ELSEWHERE, host)
    with pytest.raises(DriverStartError, match=r"spark\.authenticate\.secret"):
        network_conf(ELSEWHERE, host | {"spark.authenticate": "true"})
    bound = {"spark.driver.host": "10.0.0.1", "spark.driver.bindAddress": "10.0.0.1"}
    secret = {"spark.authenticate": "true", "spark.authenticate.secret": "s"}
    assert network_conf(ELSEWHERE, host | secret) == bound
    assert network_conf(ELSEWHERE, host | {"spark.authenticate": "false"}) == bound
    assert network_conf("k8s://https://a", host) == bound | {"spark.authenticate": "true"}
    yarn = network_conf("yarn", {})  # Spark chooses the address of the host
    assert yarn == {"spark.authenticate": "true", "spark.yarn.isPython": "true"}
