from __future__ import annotations

import json
import re
import stat
import traceback
from pathlib import Path
from typing import assert_type

import pytest

from conf import Configuration, SecretStr
from conf.errors import (
    ConfigurationError,
    ConfigurationFileError,
    InconsistentOptionsError,
    InvalidValueError,
    OverrideSyntaxError,
    UnknownOptionError,
)
from conf.layers import parse_yaml
from conf.option import ConfigOption
from conf.options import (
    AREAS,
    CheckpointingOptions,
    ClusterOptions,
    EnvironmentOptions,
    HeartbeatOptions,
    HighAvailabilityOptions,
    JobManagerOptions,
    RestartStrategyOptions,
    RestartStrategyType,
    RestOptions,
    RpcOptions,
    SecurityOptions,
    SparkOptions,
    StateBackend,
    TaskManagerOptions,
    all_options,
)
from conf.reference import REFERENCE_FILE, main, render_reference
from conf.registry import suggest

REDIS_URL = "redis://:hunter2@host:6379/0"


def load(*overrides: str, config: Path | None = None, **environ: str) -> Configuration:
    return Configuration.load(config, overrides, environ)


def test_values_are_typed() -> None:
    configuration = load()
    assert_type(configuration.get(RpcOptions.FRAME_SIZE), int)
    assert_type(configuration.get(RpcOptions.ASK_TIMEOUT), float)
    assert_type(configuration.get(ClusterOptions.RUNTIME_DIR), Path)
    assert_type(configuration.get(EnvironmentOptions.JAVA_HOME), Path | None)
    assert_type(configuration.get(EnvironmentOptions.JAVA_OPTS), tuple[str, ...] | None)
    assert_type(configuration.get(HighAvailabilityOptions.REDIS_URL), SecretStr | None)
    assert_type(configuration.get(RestartStrategyOptions.TYPE), RestartStrategyType)
    assert configuration.get(RpcOptions.FRAME_SIZE) == 10 << 20
    assert configuration.get(RestartStrategyOptions.TYPE) is RestartStrategyType.FIXED_DELAY
    assert configuration.get(EnvironmentOptions.JAVA_HOME) is None


def test_layers_win_from_the_last(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("rpc:\n  frame-size: 1 mb\n  ask-timeout: 3 s\nheartbeat.interval: 2 s\n")
    configuration = load("rpc.ask-timeout=4 s", UNDERSTUDY_CONF_DIR=str(tmp_path))
    assert configuration.get(RpcOptions.FRAME_SIZE) == 1 << 20
    assert configuration.get(RpcOptions.ASK_TIMEOUT) == 4.0
    assert configuration.get(HeartbeatOptions.INTERVAL) == 2.0
    assert configuration.origin(RpcOptions.FRAME_SIZE) == f"{tmp_path}/config.yaml:2"
    assert configuration.origin(RpcOptions.ASK_TIMEOUT) == "-D"
    assert configuration.origin(HeartbeatOptions.TIMEOUT) == "default"
    assert configuration.is_set(RpcOptions.FRAME_SIZE)
    assert not configuration.is_set(HeartbeatOptions.TIMEOUT)
    other = tmp_path / "other.yaml"
    other.write_text("")
    assert load(config=other, UNDERSTUDY_CONF_DIR=str(tmp_path)).get(RpcOptions.ASK_TIMEOUT) == 10.0


def test_an_empty_value_goes_back_to_the_default(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("rpc.ask-timeout: 3 s\nheartbeat:\nhigh-availability:\n  redis.url:\n")
    assert load(config=file).get(RpcOptions.ASK_TIMEOUT) == 3.0
    assert load("rpc.ask-timeout=", config=file).get(RpcOptions.ASK_TIMEOUT) == 10.0


def test_defaults_follow_from_other_options() -> None:
    configuration = load("cluster.id=blue")
    assert configuration.get(ClusterOptions.RUNTIME_DIR) == Path.home() / ".understudy" / "blue"
    configuration = load("cluster.runtime-dir=/srv/u")
    assert configuration.get(SecurityOptions.SECRET_FILE) == Path("/srv/u/secret")
    assert configuration.get(HighAvailabilityOptions.STORAGE_DIR) == Path("/srv/u/ha")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("rpc.framesize", "rpc.frame-size"),
        ("taskmanager.slots", "taskmanager.numberOfTaskSlots"),
        ("taskmanager.number-of-task-slots", "taskmanager.numberOfTaskSlots"),
        ("heartbeat.intervall", "heartbeat.interval"),
        ("jobmanager.port", "jobmanager.rpc.port"),
        ("spark.cds.enable", "spark.cds.enabled"),
        ("restart-strategy.fixed-delay.attempt", "restart-strategy.fixed-delay.attempts"),
        ("high-availability.redis.ulr", "high-availability.redis.url"),
        ("akka.framsize", "rpc.frame-size"),
    ],
)
def test_unknown_key_names_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(UnknownOptionError) as caught:
        load(f"{key}=1")
    assert caught.value.suggestion == nearest
    assert key in str(caught.value)
    assert nearest in caught.value.remedy


def test_unknown_key_with_nothing_near() -> None:
    assert suggest("xyz") is None
    with pytest.raises(UnknownOptionError) as caught:
        load("xyz=1")
    assert "conf.reference" in caught.value.remedy


def test_unknown_key_says_where(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("rpc:\n  # a comment\n  frames: 1\n")
    with pytest.raises(UnknownOptionError, match=rf"'rpc.frames' \({file}:3\)"):
        load(config=file)


def test_invalid_value_names_everything() -> None:
    with pytest.raises(InvalidValueError) as caught:
        load("heartbeat.timeout=10")
    message = str(caught.value)
    assert "'10'" in message
    assert "'heartbeat.timeout'" in message
    assert "-D" in message
    assert "unit" in message
    assert caught.value.remedy == "write it like this: heartbeat.timeout: 10 s"
    with pytest.raises(InvalidValueError) as caught:
        load("rest.port=abc")
    assert caught.value.remedy == "write it like this: rest.port: 8081"


def test_values_that_cannot_stand_together() -> None:
    with pytest.raises(InconsistentOptionsError, match=r"heartbeat.interval = 10 s must be smaller than"):
        load("heartbeat.interval=10 s")
    with pytest.raises(InconsistentOptionsError, match=r"blob.offload.minsize = 1 mb must not exceed"):
        load("rpc.frame-size=64 kb")
    with pytest.raises(InconsistentOptionsError, match="set the same option"):
        load("rpc.frame-size=2 mb", "pekko.framesize=3 mb")
    with pytest.raises(InconsistentOptionsError, match=r"enabled is true and security.ssl.internal.key is not set"):
        load("security.ssl.internal.enabled=true", "security.ssl.internal.certificate=/c.pem")


def test_foreign_keys() -> None:
    configuration = load("pekko.framesize=2097152b", "restart-strategy=none", "state.backend=rocksdb")
    assert configuration.get(RpcOptions.FRAME_SIZE) == 2 << 20
    assert configuration.get(RestartStrategyOptions.TYPE) is RestartStrategyType.NONE
    assert configuration.get(CheckpointingOptions.STATE_BACKEND) is StateBackend.ROCKSDB
    assert configuration.warnings == ()


def test_spark_keys_pass_through(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("spark:\n  sql.shuffle.partitions: 7\n  driver.memory: 2g\n  jars: [a.jar, b.jar]\n")
    configuration = load("spark.hadoop.fs.s3a.secret.key=hunter2", config=file)
    assert configuration.spark_properties() == {
        "spark.sql.shuffle.partitions": "7",
        "spark.jars": "a.jar,b.jar",
        "spark.hadoop.fs.s3a.secret.key": "hunter2",
    }
    assert configuration.get(SparkOptions.DRIVER_MEMORY) == 2 << 30
    assert "hunter2" not in repr(configuration)


@pytest.mark.parametrize("override", ["rpc.frame-size", "=3", "", "   =3"])
def test_override_without_key_or_value(override: str) -> None:
    with pytest.raises(OverrideSyntaxError) as caught:
        load(override)
    assert "-D" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- a\n- b\n", "not a map"),
        ("just text", "not a map"),
        ("a: [1\nb: 2\n", "not valid YAML"),
        ("a: 1\n\tb: 2\n", "f:2: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("rpc.frame-size: 1m\nrpc:\n  frame-size: 2m\n", "f:3: 'rpc.frame-size' is set again, first at f:1"),
        ("a: &x\n  b: *x\n", "aliases"),
        ("a: &x\n  c: 1\nb: *x\n", "aliases"),
        ("? [a, b]\n: 1\n", "a key must be a text"),
        ("a:\n  - b: 1\n", "neither a text nor a list"),
        ("a: \x01", "not valid YAML"),
    ],
)
def test_bad_files(text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationFileError, match=complaint) as caught:
        parse_yaml(text, "f")
    assert "\n" not in str(caught.value)


def test_yaml_values_stay_texts() -> None:
    layer = parse_yaml("a: off\nb: 1:30\nc: 'x'\nd: 0x10\ne: ~\nf: [on, 1]\ng: ''\n", "f")
    assert {key: raw.value for key, raw in layer.items()} == {
        "a": "off",
        "b": "1:30",
        "c": "x",
        "d": "0x10",
        "e": "",
        "f": ["on", "1"],
        "g": "",
    }


def test_missing_unreadable_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationFileError, match="No such file") as caught:
        load(config=tmp_path / "none.yaml")
    assert "--config" in caught.value.remedy
    with pytest.raises(ConfigurationFileError, match="No such file") as caught:
        load(UNDERSTUDY_CONF_DIR=str(tmp_path))
    assert "UNDERSTUDY_CONF_DIR" in caught.value.remedy
    with pytest.raises(ConfigurationFileError, match="Is a directory"):
        load(config=tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationFileError, match="UTF-8"):
        load(config=tmp_path / "b.yaml")


def test_secrets_are_not_shown() -> None:
    configuration = load(f"high-availability.redis.url={REDIS_URL}")
    url = configuration.get(HighAvailabilityOptions.REDIS_URL)
    assert url is not None
    assert url.reveal() == REDIS_URL
    assert "hunter2" not in f"{configuration!r} {url!r} {url}"
    assert configuration.to_dict(redacted=True)["high-availability.redis.url"] == "redis://******@host:6379/0"
    with pytest.raises(InvalidValueError) as caught:
        load("high-availability.redis.url=http://:hunter2@host")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_token_of_the_rest_api_is_not_the_clusters_secret() -> None:
    configuration = Configuration.from_dict({"cluster.runtime-dir": "/srv/u"})
    assert configuration.get(RestOptions.TOKEN_FILE) != configuration.get(SecurityOptions.SECRET_FILE)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.hadoop.fs.s3a.secret.key", "hunter2"),
        ("spark.hadoop.fs.s3a.access.key", "hunter2"),
        ("spark.hadoop.fs.s3a.encryption.key", "hunter2"),
        ("spark.hadoop.fs.azure.account.key.store.blob.core.windows.net", "hunter2"),
        ("spark.hadoop.fs.azure.sas.container.store.blob.core.windows.net", "hunter2"),
        ("spark.hadoop.fs.gs.auth.service.account.private.key", "hunter2"),
        ("spark.snowflake.pem_private_key", "hunter2"),
        ("spark.executorEnv.SOME_API_KEY", "hunter2"),
        ("spark.redis.auth", "hunter2"),
        ("spark.es.net.http.auth.pass", "hunter2"),
        ("spark.ssl.keyPassphrase", "hunter2"),
        ("spark.kafka.sasl.jaas.config", "PlainLoginModule required username='u' password='hunter2';"),
        ("spark.sql.catalog.pg.url", "jdbc:postgresql://me:hunter2@host/db"),
        ("spark.sql.catalog.pg.url", "jdbc:postgresql://host/db?user=me&password=hunter2&ssl=true"),
        ("spark.driver.extraJavaOptions", "-Da=b -Djavax.net.ssl.keyStorePassword=hunter2 -Dc=d"),
        ("spark.x.options", "AccountName=a;AccountKey=hunter2;pwd = 'hunter2 hunter2'"),
    ],
)
def test_secrets_of_sparks_settings_are_not_shown(key: str, value: str) -> None:
    configuration = load(f"{key}={value}")
    assert "hunter2" not in str(configuration.to_dict(redacted=True))
    assert configuration.spark_properties()[key] == value


def test_what_is_no_secret_of_sparks_settings_is_shown() -> None:
    settings = {
        "spark.authenticate": "true",
        "spark.sql.catalog.pg.url": "jdbc:postgresql://host:5432/db?ssl=true",
        "spark.driver.extraJavaOptions": "-Da=b -XX:+UseG1GC",
        "spark.hadoop.fs.s3a.endpoint": "http://localhost:9000",
        "spark.sql.shuffle.partitions": "8",
    }
    shown = Configuration.from_dict(settings).to_dict(redacted=True)
    assert {key: shown[key] for key in settings} == settings


def test_a_secret_that_others_may_read_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"high-availability.redis.url: {REDIS_URL}\n")
    file.chmod(0o644)
    (warning,) = load(config=file).warnings
    assert str(warning) == f"{file} holds 'high-availability.redis.url' and other users may read it: chmod 600 {file}"
    file.chmod(0o600)
    assert load(config=file).warnings == ()


def test_handing_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    configuration = load(
        f"high-availability.redis.url={REDIS_URL}",
        "cluster.runtime-dir=here",
        "env.java.opts=-Da='x y' -b",
        "spark.x=1",
        "heartbeat.interval=300 ms",
        "restart-strategy.type=none",
    )
    file = tmp_path / "handed.json"
    configuration.write(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    monkeypatch.chdir("/")
    again = Configuration.read(file)
    assert again.to_dict() == configuration.to_dict()
    assert again.get(ClusterOptions.RUNTIME_DIR) == tmp_path / "here"
    assert again.get(EnvironmentOptions.JAVA_OPTS) == ("-Da=x y", "-b")
    assert again.spark_properties() == {"spark.x": "1"}
    assert [path.name for path in tmp_path.iterdir()] == ["handed.json"]


def test_handed_over_file_that_is_not_one(tmp_path: Path) -> None:
    for content in ("", "[]", "{"):
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(ConfigurationFileError):
            Configuration.read(tmp_path / "x.json")
    (tmp_path / "x.json").write_text(json.dumps({"nonsense": "1"}))
    with pytest.raises(UnknownOptionError):
        Configuration.read(tmp_path / "x.json")


def test_from_dict_takes_plain_values() -> None:
    configuration = Configuration.from_dict(
        {"taskmanager.count": 3, "spark.cds.enabled": False, "env.java.opts": ["-a", "b c"], "rpc.ask-timeout": None}
    )
    assert configuration.get(TaskManagerOptions.COUNT) == 3
    assert configuration.get(SparkOptions.CDS_ENABLED) is False
    assert configuration.get(EnvironmentOptions.JAVA_OPTS) == ("-a", "b c")


def test_set_gives_another_configuration() -> None:
    first = Configuration()
    second = first.set(JobManagerOptions.RPC_PORT, 7000)
    assert (first.get(JobManagerOptions.RPC_PORT), second.get(JobManagerOptions.RPC_PORT)) == (6123, 7000)
    assert second.set(EnvironmentOptions.JAVA_HOME, None).get(EnvironmentOptions.JAVA_HOME) is None
    with pytest.raises(InvalidValueError):
        first.set(JobManagerOptions.RPC_PORT, 70000)


def test_every_option_is_well_declared() -> None:
    keys = [key for option in all_options() for key in option.keys]
    assert len(keys) == len(set(keys))
    for option in all_options():
        assert option.description.endswith("."), option
        option.value_type.parse(option.value_type.example)
        if option.default is not None and not option.value_type.secret:
            assert option.value_type.parse(option.default_text) == option.default, option
    assert all(area.description for area in AREAS)


def test_packaged_file_repeats_the_declared_defaults() -> None:
    packaged = Configuration.load(environ={})
    assert packaged.to_dict() == {}


def test_packaged_file_is_a_good_user_file() -> None:
    file = Path(__file__).resolve().parents[2] / "conf" / "config.yaml"
    layer = parse_yaml(file.read_text("utf-8"), "config.yaml")
    assert len(layer) > 35
    assert load(config=file).get(SparkOptions.MASTER) == "local[*]"


def test_reference_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    assert REFERENCE_FILE.read_text("utf-8") == render_reference(), "run: python -m conf.reference --write"
    assert main(["--check"]) == 0
    assert main([]) == 0
    assert capsys.readouterr().out == render_reference()
    assert main(["--wrong"]) == 2
    assert "remedy" in capsys.readouterr().err


def test_reference_shows_every_option() -> None:
    page = render_reference()
    for option in all_options():
        assert f"| `{option.key}` |" in page
        for key in option.keys[1:]:
            assert f"`{key}`" in page


def test_every_error_is_one_line_with_a_remedy() -> None:
    for override in ("a=1", "rpc.frame-size=x\ny", "heartbeat.interval=1 d", "nothing"):
        with pytest.raises(ConfigurationError) as caught:
            load(override)
        assert "\n" not in str(caught.value)
        assert caught.value.remedy


def test_every_declared_option_is_read_somewhere() -> None:
    """An option that nothing reads would be a promise that nothing keeps."""
    root = Path(__file__).resolve().parents[2]
    read: set[tuple[str, str]] = set()
    for package in ("actors", "blob", "runtime"):
        for path in (root / package).rglob("*.py"):
            read.update(re.findall(r"\b(\w*Options)\.([A-Z]\w*)", path.read_text()))
    unread = [
        value.key
        for area in AREAS
        for name, value in vars(area.options).items()
        if isinstance(value, ConfigOption) and read.isdisjoint({(area.options.__name__, name), ("Options", name)})
    ]
    assert unread == []


def test_what_one_place_gives_is_laid_over_another_configuration() -> None:
    given = Configuration.load(None, ["restart-strategy.type=none", "client.timeout=5s", "spark.mine=1"], {})
    assert given.given_by("-D") == {"restart-strategy.type": "none", "client.timeout": "5 s", "spark.mine": "1"}
    cluster = Configuration.from_dict({"restart-strategy.type": "failure-rate", "client.timeout": "9 s"})
    both = cluster.overlaid({"restart-strategy.type": "none"}, "the job")
    assert both.to_dict() == {"restart-strategy.type": "none", "client.timeout": "9 s"}
    assert both.origin(RestartStrategyOptions.TYPE) == "the job"
    assert cluster.get(RestartStrategyOptions.TYPE) is RestartStrategyType.FAILURE_RATE
    with pytest.raises(InconsistentOptionsError, match="initial-backoff"):
        cluster.overlaid({"restart-strategy.exponential-delay.initial-backoff": "2 h"}, "the job")


def test_the_error_of_badly_quoted_arguments_shows_no_password() -> None:
    text = "--index-url https://me:hunter2@pypi.example/simple -Dx.Password=geheim --trusted-host pypi's"
    with pytest.raises(InvalidValueError, match="trusted-host") as caught:
        Configuration.load(overrides=[f"taskmanager.python.pip-options={text}"], environ={})
    shown = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in shown
    assert "geheim" not in shown
