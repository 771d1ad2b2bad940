"""A cluster in a notebook, or in any Python program: a handle of the cluster, and one of each job.

    from runtime.notebook import connect

    cluster = connect()                  # the one of this machine; or connect("akka.tcp://..."), connect(redis="redis://...")
    job = cluster.submit(count, day=3)   # a function, a Pipeline, or the path of a script
    job.progress()
    job.result()

In Jupyter and IPython ``%load_ext runtime.notebook`` adds ``%%understudy``, which runs a cell as a job, and shows
errors as one line. Nothing runs in the kernel but plain sockets: no actor system, no event loop, no Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.errors import JobCancelledError, JobFailedError, NotebookError, SavepointFailedError
from runtime.notebook.cluster import AsyncCluster, AsyncSubmitter, Cluster, Submitter, connect, connect_async
from runtime.notebook.job import AsyncJob, DoneAndNotDone, Job, as_completed, wait
from runtime.notebook.submission import SubmitOptions

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = [
    "AsyncCluster",
    "AsyncJob",
    "AsyncSubmitter",
    "Cluster",
    "DoneAndNotDone",
    "Job",
    "JobCancelledError",
    "JobFailedError",
    "NotebookError",
    "SavepointFailedError",
    "SubmitOptions",
    "Submitter",
    "as_completed",
    "connect",
    "connect_async",
    "wait",
]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Install the magic; called by ``%load_ext runtime.notebook``."""
    from runtime.notebook.magic import install

    install(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magic; called by ``%unload_ext runtime.notebook``."""
    from runtime.notebook.magic import uninstall

    uninstall(shell)
