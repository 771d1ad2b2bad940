"""The options of more than one command, or of one kind."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from conf.configuration import Configuration
from conf.options import ClientOptions, ExecutionTarget, all_options

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


def configured(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-D`` and ``--config``, and pass the resulting configuration as ``configuration``."""

    @click.option(
        "-D",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=complete_option,
        help="Set a configuration option; repeatable.",
    )
    @click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        help="Configuration file.  [default: config.yaml in $UNDERSTUDY_CONF_DIR]",
    )
    @functools.wraps(command)
    def wrapper(overrides: tuple[str, ...], config_file: Path | None, **settings: Any) -> Any:
        configuration = Configuration.load(config_file, overrides)
        for warning in configuration.warnings:
            click.echo(f"warning: {warning}", err=True)
        return command(configuration=configuration, **settings)

    return wrapper


def role_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--role`` and ``--hosts``: for one host's part of a cluster on several, or for all of them."""
    role = click.option(
        "--role",
        type=click.Choice(["master", "task-executor"]),
        help="This host's part of a cluster on several hosts (docs/hosts.md).",
    )
    hosts = click.option(
        "--hosts",
        is_flag=True,
        help="On every host that `masters` and `workers` in the configuration directory name, over ssh.",
    )
    return role(hosts(command))


host_option = click.option("--host", help="With --role: the address of this host.  [default: found]")
job_argument = click.argument("job_id", shell_complete=complete_job)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--target`` and ``--masters`` to a command that runs a job."""
    targets = [target.value for target in ExecutionTarget]
    command = click.option(
        "--masters",
        type=click.IntRange(1, 16),
        default=1,
        show_default=True,
        help="With another target than session: how many masters its cluster has.",
    )(command)
    return click.option(
        "--target",
        type=click.Choice(targets),
        help="session: in the cluster that runs; per-job: in a cluster for this job, gone with it; "
        "application: FILE's main() runs in a cluster of its own, with all jobs that it submits.  [default: "
        "execution.target]",
    )(command)


def files_option(flag: str, name: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option that names a file of a job's, and may be given again and again."""
    return click.option(flag, name, multiple=True, type=click.Path(exists=True, dir_okay=False), help=text)
