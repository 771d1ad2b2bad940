"""What a shell completes: commands and options (click's own), the keys of ``-D``, and the ids of jobs."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from conf.configuration import Configuration
from conf.options import ClientOptions, all_options

SHELLS = ("bash", "zsh", "fish")
PROGRAM = "understudy"
ASK_S = 2.0
"""How long a shell waits for the cluster at most."""


def completion_script(cli: click.Command, shell: str) -> str:
    """What a shell has to read for it; it calls ``understudy`` with ``_UNDERSTUDY_COMPLETE`` set."""
    found = get_completion_class(shell)
    assert found is not None
    text: str = found.source_template % found(cli, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source_vars()
    return text


def complete_option(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The keys of ``-D``, with an equals sign."""
    return [
        CompletionItem(f"{option.key}=", help=option.description.partition(". ")[0])
        for option in all_options()
        if option.key.startswith(incomplete)
    ]


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The ids of the cluster's jobs; none where it does not answer at once."""
    from runtime.cluster.session import connect

    try:
        configuration = Configuration.load(ctx.params.get("config_file"), ctx.params.get("overrides") or ())
        with connect(configuration.set(ClientOptions.TIMEOUT, ASK_S)) as client:
            jobs = client.list_jobs()
    except Exception:  # whatever it is, a shell that completes has no place to say it
        return []
    return [
        CompletionItem(job.job_id, help=f"{job.name}, {job.status.value}")
        for job in jobs
        if job.job_id.startswith(incomplete)
    ]
