"""How a refusal names the files of a job that ships too much."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from runtime.client import AsyncClusterClient, JobFile, Link
from runtime.ids import JobID
from runtime.jobgraph.job_graph import Artifact, ArtifactRole, JobGraph, files_text
from runtime.protocol.errors import JobSubmissionError, QueueRejectedError, SubmissionLimitError

MB = 1 << 20
SMALLER = "; --working-dir DIRECTORY ships another directory, even an empty one, and .gitignore leaves files out"


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ([], ""),
        ([("job.py", ArtifactRole.MAIN, 0)], ""),
        ([("job.py", ArtifactRole.MAIN, 17)], "it ships job.py (17 bytes)"),
        (
            [
                ("job.py", ArtifactRole.MAIN, 20),
                ("working-directory.zip", ArtifactRole.WORKING_DIRECTORY, 3 * MB),
                ("lib.zip", ArtifactRole.PY_FILE, MB // 2),
            ],
            f"it ships a copy of the working directory (3.0 MB), lib.zip (0.5 MB), job.py (20 bytes){SMALLER}",
        ),
        (
            [(f"{number}.jar", ArtifactRole.JAR, number * MB) for number in range(6)],
            "it ships 5.jar (5.0 MB), 4.jar (4.0 MB), 3.jar (3.0 MB), 2 smaller files (3.0 MB)",
        ),
        (
            [
                *((f"{number}.jar", ArtifactRole.JAR, number * MB) for number in range(2, 5)),
                ("directory.zip", ArtifactRole.WORKING_DIRECTORY, MB),
            ],
            f"it ships 4.jar (4.0 MB), 3.jar (3.0 MB), 2.jar (2.0 MB), 1 smaller file (1.0 MB){SMALLER}",
        ),
    ],
)
def test_the_largest_files_are_named(files: list[tuple[str, ArtifactRole, int]], text: str) -> None:
    assert files_text(files) == text
    artifacts = [Artifact(name, role, size=size) for name, role, size in files]
    assert JobGraph.for_script("x").with_artifacts(*artifacts).blobs_text == text


def test_more_is_said_before_the_seconds_of_a_limit() -> None:
    refused = SubmissionLimitError.of("too much", 7).with_more("it ships a.jar")
    assert (str(refused), refused.retry_after_s) == ("too much; it ships a.jar; submit again in 7 s", 7)
    assert str(SubmissionLimitError("too much").with_more("it ships a.jar")) == "too much; it ships a.jar"
    assert isinstance(QueueRejectedError("too much").with_more("more"), QueueRejectedError)


class _Link:
    async def blocking(self, work: Any) -> Any:
        return work()


@pytest.mark.parametrize("error", [SubmissionLimitError.of("too much", 7), QueueRejectedError("too much")])
async def test_a_refused_upload_names_the_files_that_were_counted(error: JobSubmissionError, tmp_path: Path) -> None:
    class Client(AsyncClusterClient):
        async def admit_upload(self, job_id: JobID, upload_id: str, size: int, owner: str, name: str = "") -> None:
            raise error

    main, copy = tmp_path / "job.py", tmp_path / "working-directory.zip"
    main.write_bytes(b"print()")
    copy.write_bytes(bytes(2 * MB))
    files = [JobFile(main.name, ArtifactRole.MAIN, main), JobFile(copy.name, ArtifactRole.WORKING_DIRECTORY, copy)]
    with pytest.raises(type(error)) as refused:
        await Client(cast(Link, _Link()), 1.0, 1).submit(JobGraph.for_script("x"), files)
    assert str(refused.value) == str(
        error.with_more(f"it ships a copy of the working directory (2.0 MB), job.py (7 bytes){SMALLER}")
    )
