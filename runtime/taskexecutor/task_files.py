"""What an attempt needs before its process starts: the job's files, and the environment that its code imports from."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from blob.cache import BlobCache
from blob.key import BlobKey
from runtime.jobgraph.job_graph import Artifact, ArtifactRole
from runtime.jobmaster.descriptor import TaskDeploymentDescriptor
from runtime.librarycache.environment import EnvironmentSpec, Library, LibraryKind, PythonEnvironment
from runtime.librarycache.manager import EnvironmentLease

_LIBRARIES = {
    ArtifactRole.PY_FILE: LibraryKind.PY_FILE,
    ArtifactRole.PACKAGE: LibraryKind.PACKAGE,
    ArtifactRole.REQUIREMENTS: LibraryKind.REQUIREMENTS,
    ArtifactRole.ARCHIVE: LibraryKind.ARCHIVE,
    ArtifactRole.JAR: LibraryKind.JAR,
}


class TaskFiles:
    """Fetches them, which blocks.

    Args:
        descriptor: the attempt.
        directory: its own directory.
        blobs: the job's files.
    """

    def __init__(self, descriptor: TaskDeploymentDescriptor, directory: Path, blobs: BlobCache) -> None:
        self._descriptor = descriptor
        self._directory = directory
        self._blobs = blobs

    def prepare(
        self, lease: EnvironmentLease, cancelled: Callable[[], bool]
    ) -> tuple[dict[ArtifactRole, list[Path]], PythonEnvironment | None]:
        """The job's files, and what its code imports; the latter is None where it brings nothing.

        Raises:
            BlobError, OSError: a file cannot be had.
            LibraryCacheError: what the job brings cannot be installed.
        """
        libraries = {
            Library(artifact.name, _LIBRARIES[artifact.role], BlobKey.parse(artifact.blob_key).digest.hex()): artifact
            for artifact in self._descriptor.artifacts
            if artifact.role in _LIBRARIES
        }
        files = self._fetch_artifacts()
        if not libraries:
            return files, None
        spec = EnvironmentSpec(tuple(libraries))
        return files, lease.get_or_resolve(spec, lambda library: self._cached(libraries[library]), cancelled)

    def tell_user(self, text: str) -> None:
        """A line in the standard error of the attempt, which its process goes on with."""
        descriptor = os.open(self._directory / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")

    def _cached(self, artifact: Artifact) -> Path:
        return self._blobs.get_file(self._descriptor.job_id, BlobKey.parse(artifact.blob_key))

    def _fetch_artifacts(self) -> dict[ArtifactRole, list[Path]]:
        """The job's files under the names that the user knows: linked from the cache, or written down."""
        files: dict[ArtifactRole, list[Path]] = {role: [] for role in ArtifactRole}
        for artifact in self._descriptor.artifacts:
            if artifact.role in _LIBRARIES:
                continue
            target = self._directory / "files" / Path(artifact.name).name
            target.parent.mkdir(mode=0o700, exist_ok=True)
            if not target.exists():
                if artifact.content is None:
                    os.link(self._cached(artifact), target)
                else:
                    target.touch(mode=0o600)
                    target.write_bytes(artifact.content)
            files[artifact.role].append(target)
        return files
