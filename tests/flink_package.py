"""Flink's own command line client and web page, of the package `apache-flink-libraries` (the extra `flink`)."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.older_java import older_java
from tests.rest_client import RestClient
from tests.waiting import PATIENCE_S

OPENED = ("java.lang", "java.util", "java.net", "java.io", "java.nio")
"""What Flink has to see of Java's own packages."""

_STACK_FRAME = re.compile(r"\s+(at \S+\(|\.\.\. \d+ more)")


def flink_java() -> Path:
    """The program `java` for Flink, which uses the security manager that Java 24 has taken away."""
    return older_java() / "bin" / "java"


def flink_home() -> Path | None:
    """The folder that holds Flink's `lib`; None where it is not installed."""
    try:
        return Path(str(distribution("apache-flink-libraries").locate_file("pyflink")))
    except PackageNotFoundError:
        return None


def flink_dist() -> Path:
    """The jar that holds Flink; skips the test where there is none."""
    home = flink_home()
    if home is None:
        pytest.skip("Flink is not installed (330 MB): pip install 'apache-flink-libraries>=2.3,<2.4', the extra flink")
    (jar,) = (home / "lib").glob("flink-dist-*.jar")
    return jar


def web_files() -> dict[str, bytes]:
    """The files of Flink's web page by their paths, each with a slash before it."""
    with zipfile.ZipFile(flink_dist()) as jar:
        names = [name for name in jar.namelist() if name.startswith("web/") and not name.endswith("/")]
        return {name.removeprefix("web"): jar.read(name) for name in names}


@dataclass(frozen=True)
class Said:
    """What a command of the client's came to: its exit code, and its lines without Java's stack frames."""

    code: int
    text: str


class FlinkClient:
    """Flink's client (`CliFrontend`, which is what `bin/flink` starts), configured as its users do it.

    Args:
        directory: for its configuration.
        rest: the endpoint and the token.
    """

    def __init__(self, directory: Path, rest: RestClient) -> None:
        self._jar = flink_dist()
        self._configuration = directory / "flink-conf"
        self._configuration.mkdir()
        where = urlsplit(rest.url)
        lines = f"rest.address: {where.hostname}\nrest.port: {where.port}\n"
        (self._configuration / "config.yaml").write_text(lines)
        self._token = rest.token

    def __call__(self, *arguments: str) -> Said:
        """One command, to its end."""
        java = [str(flink_java()), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
        opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED]
        environment = {**os.environ, "FLINK_CONF_DIR": str(self._configuration)}
        environment.pop("FLINK_REST_CLIENT_HEADERS", None)
        if self._token:
            environment["FLINK_REST_CLIENT_HEADERS"] = f"Authorization:Bearer {self._token}"
        main = ["-cp", str(self._jar), "org.apache.flink.client.cli.CliFrontend"]
        done = subprocess.run(
            [*java, *opened, *main, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if not _STACK_FRAME.match(line)]
        return Said(done.returncode, "\n".join(lines))

    def good(self, *arguments: str) -> str:
        """What a command says that ends well."""
        said = self(*arguments)
        assert said.code == 0, f"flink {' '.join(arguments)}: {said}"
        return said.text

    def bad(self, *arguments: str) -> str:
        """What a command says that ends badly. The client's own bewilderment is no answer."""
        said = self(*arguments)
        assert said.code != 0, f"flink {' '.join(arguments)}: {said}"
        assert "NullPointerException" not in said.text
        assert "JsonParseException" not in said.text
        return said.text
