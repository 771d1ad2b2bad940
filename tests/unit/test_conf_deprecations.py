"""Renamed and removed options, planted: they work for one release, with a warning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from conf import Configuration, registry
from conf.errors import InconsistentOptionsError, InvalidValueError, UnknownOptionError
from conf.option import ConfigOption, DeprecatedKey, RemovedOption, option
from conf.options import JOB_OPTIONS, REMOVED_OPTIONS, Area, JobOptions, all_options
from conf.values import Duration
from runtime import __version__
from runtime.cluster.cli import cli
from runtime.cluster.deployment import own_configuration
from runtime.cluster.doctor import describe_settings
from runtime.cluster.preflight import CheckResult
from runtime.embedded import cluster as embedded
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobgraph.validation import check_configuration
from runtime.notebook.submission import job_settings
from runtime.protocol.descriptor import JobInformation

RENAMED = option(
    "planted.wait",
    Duration(),
    "10 s",
    "A planted option.",
    fallback_keys=("flink.wait",),
    deprecated_keys=(DeprecatedKey("planted.delay", "0.3.0"), DeprecatedKey("planted.pause", "0.2.0")),
)
SECOND = option(
    "planted.second", Duration(), "1 s", "Another one.", deprecated_keys=(DeprecatedKey("planted.2", "0.2.0"),)
)
REMOVED = RemovedOption("planted.gone", "0.3.0", "set planted.wait instead")


def plant(monkeypatch: pytest.MonkeyPatch, *options: ConfigOption[object]) -> None:
    """Declare options instead of those of the same keys."""
    keys = {planted.key for planted in options}
    declared = [*(known for known in all_options() if known.key not in keys), *options]
    monkeypatch.setattr(registry, "all_options", lambda: iter(declared))
    registry.options_by_key.cache_clear()


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    plant(monkeypatch, RENAMED, SECOND)
    monkeypatch.setattr(registry, "REMOVED_OPTIONS", (REMOVED,))
    monkeypatch.setattr(registry, "_reported", set())
    yield
    monkeypatch.undo()
    registry.options_by_key.cache_clear()


def load(*overrides: str, config: Path | None = None) -> Configuration:
    return Configuration.load(config, overrides, {})


def texts(configuration: Configuration) -> list[str]:
    return [str(warning) for warning in configuration.warnings]


def test_a_former_name_works_and_its_warning_has_place_and_remedy(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("planted:\n  delay: 3 s\n")
    configuration = load("planted.2=4 s", config=file)
    assert configuration.get(RENAMED) == 3.0
    assert configuration.get(SECOND) == 4.0
    assert configuration.origin(RENAMED) == f"{file}:2"
    assert texts(configuration) == [
        f"{file}:2: 'planted.delay' was renamed in 0.3.0; 0.3 is the last release that accepts it: "
        "write 'planted.wait' instead",
        "-D: 'planted.2' was renamed in 0.2.0; 0.2 is the last release that accepts it: write 'planted.second' instead",
    ]
    assert configuration.to_dict() == {"planted.wait": "3 s", "planted.second": "4 s"}, "stored by its present name"
    with pytest.raises(InvalidValueError, match=r"'planted.delay' \(-D\)"):
        load("planted.delay=soon")


def test_a_removed_option_has_no_effect_but_its_warning(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("planted.gone: 3 s\n")
    configuration = load(config=file)
    assert configuration.to_dict() == {}
    assert texts(configuration) == [
        f"{file}:1: 'planted.gone' was removed in 0.3.0 and has no effect; 0.3 is the last release that accepts it: "
        "set planted.wait instead"
    ]
    with pytest.raises(UnknownOptionError):
        load("planted.gone2=1")


@pytest.mark.parametrize(
    ("given", "value_s", "winner"),
    [
        (("planted.wait=1 s", "planted.delay=2 s"), 1.0, "planted.wait"),
        (("planted.delay=2 s", "planted.wait=1 s"), 1.0, "planted.wait"),
        (("planted.delay=2 s", "flink.wait=1 s"), 1.0, "flink.wait"),
        (("planted.pause=3 s", "planted.delay=2 s"), 2.0, "planted.delay"),
        (("planted.delay=2 s", "planted.wait="), 10.0, "planted.wait"),
    ],
)
def test_in_a_layer_the_later_name_wins(given: tuple[str, str], value_s: float, winner: str) -> None:
    configuration = load(*given)
    assert configuration.get(RENAMED) == value_s
    (loser,) = {text.partition("=")[0] for text in given} - {winner}
    assert texts(configuration)[-1] == (
        f"-D: {loser!r} is ignored, because {winner!r} (-D) sets the same option: remove {loser!r}, a former name"
    )


def test_two_present_names_in_a_layer_contradict_each_other() -> None:
    with pytest.raises(InconsistentOptionsError, match="set the same option"):
        load("planted.wait=1 s", "flink.wait=1 s")
    with pytest.raises(InconsistentOptionsError, match="set the same option"):
        load().overlaid({"planted.wait": "1 s", "flink.wait": "1 s"}, "settings")


def test_a_later_layer_wins_by_any_name(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("planted.wait: 1 s\n")
    assert load("planted.delay=2 s", config=file).get(RENAMED) == 2.0
    assert load(config=file).overlaid({"planted.pause": "3 s"}, "the job").get(RENAMED) == 3.0


def test_a_process_reports_each_warning_once() -> None:
    reported: list[str] = []
    for _ in range(3):
        load("planted.delay=2 s", "planted.gone=1").report_warnings(reported.append)
    assert reported == texts(load("planted.delay=2 s", "planted.gone=1"))
    load("planted.2=2 s").report_warnings(reported.append)
    assert len(reported) == 3


def test_a_command_warns_and_doctor_lists_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("planted:\n  delay: 3 s\n  wait: 2 s\n")
    settings = ("--config", str(file), "-D", "planted.gone=1", "-D", "planted.2=1 s")
    configuration = load("planted.gone=1", "planted.2=1 s", config=file)
    listed = [(result.ok, result.detail, result.remedy) for result in describe_settings(configuration)]
    assert listed == [(True, warning.message, warning.remedy) for warning in configuration.warnings]
    assert len(listed) == 3

    passed = [CheckResult("Python", True, "Python 3")]
    monkeypatch.setattr("runtime.cluster.doctor.examine", lambda checks, expected: passed)
    done = CliRunner().invoke(cli, ["doctor", *settings])
    for warning in configuration.warnings:
        assert f"warning: {warning}\n" in done.stderr
        assert re.search(
            rf"configuration +warning +{re.escape(warning.message)} +{re.escape(warning.remedy)}", done.stdout
        )
    assert done.stdout.endswith("\n3 of 4 checks warn, none failed\n")
    assert done.exit_code == 0
    (clean,) = describe_settings(load("planted.wait=1 s"))
    assert clean.ok
    assert not clean.remedy


def test_settings_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = option(
        JobOptions.SPARK_DRIVER.key,
        JobOptions.SPARK_DRIVER.value_type,
        "shared",
        "The real option.",
        deprecated_keys=(DeprecatedKey("planted.driver", "0.2.0"),),
    )
    plant(monkeypatch, renamed)
    monkeypatch.setattr(registry, "JOB_OPTIONS", frozenset({renamed}))
    given = {"planted.driver": "own", "planted.gone": "1"}
    check_configuration(given)
    with pytest.warns(UserWarning, match=r"settings of the job: 'planted\.(driver|gone)' was") as caught:
        assert job_settings(given) == given
    assert len(caught) == 2
    assert JobInformation.of(JobGraph("0" * 32, "j", None, (), configuration=given)).spark_driver == "own"  # type: ignore[arg-type]
    # An earlier release, to which a command sends the job, knows the former name alone.
    assert load("planted.driver=own").given_by("-D") == {"planted.driver": "own"}


def test_options_of_an_own_cluster_by_former_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from conf.options import ClusterOptions, ExecutionTarget

    renamed = option(
        "cluster.id", ClusterOptions.ID.value_type, "default", "It.", deprecated_keys=(DeprecatedKey("id", "0.2.0"),)
    )
    plant(monkeypatch, renamed)
    own = own_configuration(load("id=blue"), "made-up", ExecutionTarget.PER_JOB)
    assert own.to_dict()["cluster.id"] == "blue"


def test_an_embedded_cluster_takes_former_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from conf.options import ClusterOptions, TaskManagerOptions

    slots = option(
        TaskManagerOptions.COUNT.key,
        TaskManagerOptions.COUNT.value_type,
        "1",
        "It.",
        deprecated_keys=(DeprecatedKey("workers", "0.2.0"),),
    )
    root = option(
        ClusterOptions.RUNTIME_DIR.key,
        ClusterOptions.RUNTIME_DIR.value_type,
        "/x",
        "It.",
        deprecated_keys=(DeprecatedKey("root", "0.2.0"),),
    )
    plant(monkeypatch, slots, root)
    with pytest.warns(UserWarning, match="was renamed in"):
        configuration, keeps = embedded._configuration({"workers": 3, "root": str(tmp_path)})
    assert keeps
    assert configuration.get(TaskManagerOptions.COUNT) == 3
    assert configuration.get(ClusterOptions.RUNTIME_DIR) == tmp_path


def test_the_reference_shows_former_names_and_removed_options(monkeypatch: pytest.MonkeyPatch) -> None:
    class Planted:
        """Planted options."""

        WAIT = RENAMED

    monkeypatch.setattr("conf.reference.AREAS", (Area("Planted", Planted),))
    monkeypatch.setattr("conf.reference.REMOVED_OPTIONS", (REMOVED,))
    from conf.reference import render_reference

    page = render_reference()
    assert "Formerly: `planted.delay` (renamed in 0.3.0), `planted.pause` (renamed in 0.2.0)." in page
    assert "| `planted.gone` | 0.3.0 | set planted.wait instead |" in page


def minor(version: str) -> tuple[int, int]:
    major, second, _ = version.split(".")
    return int(major), int(second)


def overdue(options: list[ConfigOption[object]], removed: tuple[RemovedOption, ...], version: str) -> list[str]:
    """Declarations that a release no longer has. Stored jobs keep the names that they were submitted with."""
    former = [(name.key, name.since) for known in options if known not in JOB_OPTIONS for name in known.deprecated_keys]
    gone = [(known.key, known.since) for known in removed]
    return [key for key, since in (*former, *gone) if minor(since) < minor(version)]


def test_former_names_and_removed_options_end_after_one_release() -> None:
    registry.options_by_key.cache_clear()
    assert overdue(list(all_options()), REMOVED_OPTIONS, __version__) == [], "remove these declarations"
    assert overdue([RENAMED, SECOND], (REMOVED,), "0.3.1") == ["planted.pause", "planted.2"]
    assert overdue([RENAMED, SECOND], (REMOVED,), "0.4.0") == [
        "planted.delay",
        "planted.pause",
        "planted.2",
        "planted.gone",
    ]
