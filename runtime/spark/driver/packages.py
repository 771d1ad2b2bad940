"""Maven packages of a driver: what to fetch, one fetch at a time for each cache, and the line for what is not there.

Spark's own Ivy fetches the packages, in a small JVM of its own (`runtime.spark.driver.local`). Ivy has no time limits:
Spark gives its resolvers none, and Java's properties for them do not reach it. A repository that accepts connections
and never answers would hold a fetch for ever. So a fetch has a limit, at which its JVM is killed.

Ivy's cache is not safe across processes: two fetches at the same time may read each other's unfinished files. A file
lock in the cache admits one fetch at a time, of all drivers of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import quoteattr

from conf.registry import masked
from runtime.environment.claims import Claim
from runtime.environment.descriptor import ProcessRecord
from runtime.spark.errors import PackagesError

PACKAGES, IVY_DIR, IVY_SETTINGS = "spark.jars.packages", "spark.jars.ivy", "spark.jars.ivySettings"
EXCLUDES, REPOSITORIES = "spark.jars.excludes", "spark.jars.repositories"
OFFLINE, TIMEOUT = "taskmanager.spark.packages.offline", "taskmanager.spark.packages.timeout"

LOCK = ".understudy.lock"
"""File in Ivy's directory that a fetch locks."""

OFFLINE_SETTINGS = ".understudy-offline.xml"
"""File in Ivy's directory with `PackageRequest.offline_settings`."""

_PAUSE = 0.1
"""Seconds between two attempts to lock the cache."""

_QUIET = 5.0
"""Seconds that a fetch waits for the cache before it says so."""

_UNRESOLVED = re.compile(r"(?:unresolved dependency|download failed): ([^\s#]+)#([^\s#;]+);([^\s:,!\]]+)")
_REMOTE = ("central", "spark-packages", *(f"repo-{number}" for number in range(1, 17)))
"""Names that Spark gives to repositories. Ivy takes a module from its cache only if it knows that module's
repository."""


@dataclass(frozen=True, slots=True)
class PackageRequest:
    """Packages to fetch for the start of a driver.

    Args:
        coordinates: ``GROUP:ARTIFACT:VERSION``, separated by commas.
        directory: Ivy's, with its cache and the fetched jars.
        excludes: ``GROUP:ARTIFACT`` to leave out, separated by commas.
        repositories: URLs of further Maven repositories, separated by commas.
        settings_file: the user's own settings of Ivy; empty for none.
        offline: whether to take packages only from this machine.
        timeout_s: limit in seconds of the fetch, and of the wait for the cache before it.
    """

    coordinates: str
    directory: Path
    excludes: str = ""
    repositories: str = ""
    settings_file: str = ""
    offline: bool = False
    timeout_s: float = 600.0

    @classmethod
    def of(cls, conf: Mapping[str, str], *, offline: bool, timeout_s: float) -> PackageRequest | None:
        """Return the request of a driver's settings; None if they name no packages.

        Args:
            conf: Spark's settings.
            offline: ``taskmanager.spark.packages.offline``.
            timeout_s: ``taskmanager.spark.packages.timeout``, in seconds.
        """
        if not conf.get(PACKAGES):
            return None
        excludes, repositories, settings_file = (conf.get(key, "") for key in (EXCLUDES, REPOSITORIES, IVY_SETTINGS))
        return cls(conf[PACKAGES], Path(conf[IVY_DIR]), excludes, repositories, settings_file, offline, timeout_s)

    @property
    def _urls(self) -> list[str]:
        return [url.strip() for url in self.repositories.split(",") if url.strip()]

    @property
    def used_repositories(self) -> str:
        """Return the repositories to pass to Ivy; offline they are in its settings."""
        return "" if self.offline else self.repositories

    def offline_settings(self) -> str:
        """Return settings of Ivy that need no network: the cache, the user's local repositories, and directories."""
        none = (self.directory / "none").as_uri()
        roots = dict.fromkeys(_REMOTE, none)
        roots |= {f"repo-{number}": url for number, url in enumerate(self._urls, 1) if _is_directory(url)}
        local = quoteattr(f"{self.directory}/local/[organisation]/[module]/[revision]/[type]s/[artifact].[ext]")
        maven = (Path.home() / ".m2" / "repository").as_uri()
        resolvers = "".join(
            f"<ibiblio name={quoteattr(name)} m2compatible='true' root={quoteattr(root.rstrip('/') + '/')}/>"
            for name, root in {"local-m2-cache": maven, **roots}.items()
        )
        return (
            "<ivysettings><settings defaultResolver='offline'/><resolvers><chain name='offline'>"
            f"<filesystem name='local-ivy-cache'><ivy pattern={local}/><artifact pattern={local}/></filesystem>"
            f"{resolvers}</chain></resolvers></ivysettings>"
        )

    def explain(self, failure: str) -> str:
        """Return one line for a failed fetch: the packages, the remedy, the repositories, which may be cut off.

        Args:
            failure: Ivy's exception.
        """
        missing = list(dict.fromkeys(":".join(found) for found in _UNRESOLVED.findall(failure)))
        if not missing:
            return f"spark.jars.packages={self.coordinates} cannot be resolved: {' '.join(failure.split())[:500]}"
        return f"spark.jars.packages: {', '.join(missing)} not found: {self._remedy}; searched: {self._searched}"

    def explain_late(self, peers: str) -> str:
        """Return one line for a fetch that has reached its limit: the packages, the remedy, and the repositories.

        Args:
            peers: addresses to which Ivy was connected; empty for none.
        """
        waits = f"Ivy still waited for {peers}" if peers else "Ivy was still at work"
        return (
            f"spark.jars.packages: {self.coordinates} not fetched within {self.timeout_s:g} s ({TIMEOUT}), {waits}: "
            "name a repository that answers with --repositories URL, or allow more time; "
            f"searched: {self._searched}"
        )

    def explain_wait(self, holder: str) -> str:
        """Return one line for a fetch that waits for another one's end; *holder* names that one."""
        return (
            f"spark.jars.packages: {self.coordinates} wait for {holder}, as only one fetch uses {self._home} at a time"
        )

    def explain_held(self, holder: str) -> str:
        """Return one line for a fetch that has waited too long for the cache, which *holder* uses."""
        return (
            f"spark.jars.packages: {self.coordinates} not fetched, since {holder} has used {self._home} for over "
            f"{self.timeout_s:g} s ({TIMEOUT}): end it, or name another directory with -D {IVY_DIR}=DIR"
        )

    @property
    def _searched(self) -> str:
        urls = [masked(REPOSITORIES, url) for url in self._urls if not self.offline or _is_directory(url)]
        if self.settings_file:
            return ", ".join([f"the repositories of {IVY_SETTINGS}={self.settings_file}", *urls])
        remote = [] if self.offline else ["Maven Central", "repos.spark-packages.org"]
        return ", ".join([self._home, "~/.m2/repository", *urls, *remote])

    @property
    def _home(self) -> str:
        return str(self.directory).replace(f"{Path.home()}/", "~/")

    @property
    def _remedy(self) -> str:
        if self.offline:
            return (
                f"{OFFLINE} forbids the network; copy the package into {self._home}, or give --repositories file:///DIR"
            )
        return "correct the coordinates, or name a repository that the machine reaches with --repositories URL"


def _is_directory(url: str) -> bool:
    return urlsplit(url).scheme == "file" and Path(unquote(urlsplit(url).path)).is_absolute()


class Ivy(Protocol):
    """Fetches packages, in a process of its own."""

    async def fetch(self, request: PackageRequest) -> list[Path]:
        """Return the jars of a request. A cancelled call returns when its process has ended.

        Raises:
            PackagesError: a package is not available.
        """

    def peers(self) -> str:
        """Return the addresses to which the process of a running fetch is connected; empty for none."""


class PackageCache:
    """Fetches packages, one request at a time for each cache of this machine."""

    def __init__(self) -> None:
        self._claims: dict[Path, Claim] = {}

    async def fetch(self, request: PackageRequest, ivy: Ivy, tell: Callable[[str], None]) -> list[Path]:
        """Return the jars of a request, once no other process fetches into its cache.

        A call that is cancelled, or reaches the limit, ends its fetch and frees the cache.

        Args:
            request: names the packages.
            ivy: makes the fetch.
            tell: called with a line for the user if the fetch has to wait for the cache.

        Raises:
            PackagesError: the cache cannot be used, a package is not available, or a limit is reached.
        """
        if request.offline and request.settings_file:
            raise PackagesError(
                f"{IVY_SETTINGS}={request.settings_file} may name repositories elsewhere, and this cluster fetches "
                f"nothing from the network ({OFFLINE}): remove one of the two"
            )
        directory = request.directory
        claim = self._claims.setdefault(directory, Claim(directory / LOCK))
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            await _acquire(claim, request, tell)
        except OSError as error:
            raise PackagesError(
                f"{PACKAGES}={request.coordinates} cannot be resolved: the directory {directory} cannot be used "
                f"({error.strerror or error}); name another with -D {IVY_DIR}=DIR"
            ) from error
        try:
            with contextlib.suppress(OSError):  # only those that wait read it
                claim.note(ProcessRecord.of(request.coordinates, os.getpid()))
            return await _within_limit(request, ivy)
        finally:
            claim.release()


async def _acquire(claim: Claim, request: PackageRequest, tell: Callable[[str], None]) -> None:
    """Lock a cache. Raises OSError and PackagesError."""
    loop = asyncio.get_running_loop()
    began, is_told = loop.time(), False
    while claim.held or not claim.try_acquire():
        waited = loop.time() - began
        if waited > request.timeout_s:
            raise PackagesError(request.explain_held(_holder(claim)))
        if waited > _QUIET and not is_told:
            is_told = True
            tell(request.explain_wait(_holder(claim)))
        await asyncio.sleep(_PAUSE)


def _holder(claim: Claim) -> str:
    found = claim.living()
    return "another process" if found is None else f"process {found[0].pid} (it fetches {found[0].role})"


async def _within_limit(request: PackageRequest, ivy: Ivy) -> list[Path]:
    work = asyncio.ensure_future(ivy.fetch(request))
    try:
        await asyncio.wait({work}, timeout=request.timeout_s)
        if not work.done():
            raise PackagesError(request.explain_late(ivy.peers()))
        return work.result()
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
