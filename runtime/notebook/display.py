"""How a job is shown while it runs: one output of a notebook that is drawn anew, or what the command line shows."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from runtime.cluster.views import JobProgress, JobView, job_progress
from runtime.notebook.html import job_html


class JobDisplay:
    """A `JobProgress` of the right kind; no widgets are needed."""

    def __init__(self) -> None:
        self._progress: JobProgress = NotebookProgress() if in_notebook() else job_progress()

    def update(self, job: JobView) -> None:
        """Show the job as it is now."""
        self._progress.update(job)

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)


class NotebookProgress:
    """Draws the same output again: IPython's ``update_display``."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = ""

    def update(self, job: JobView) -> None:
        """Draws the job, if it looks different."""
        from IPython import display

        html = job_html(job)
        if html == self._shown:
            return
        self._shown = html
        if self._handle is None:
            self._handle = display.display(_html(html), display_id=True)  # type: ignore[no-untyped-call, unused-ignore]
        else:
            self._handle.update(_html(html))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def _html(text: str) -> Any:
    from IPython import display

    return display.HTML(text)  # type: ignore[no-untyped-call, unused-ignore]


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook (a terminal's IPython is none)."""
    if "IPython" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    return shell is not None and hasattr(shell, "kernel")
