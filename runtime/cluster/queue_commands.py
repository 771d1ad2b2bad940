"""The command ``understudy queue``."""

from __future__ import annotations

from pathlib import Path

import click

from conf.configuration import Configuration
from runtime.cluster.command_line import configured, connected, examples, json_option
from runtime.cluster.output import print_answer, print_document, print_line, print_table, say


@click.group()
def queue() -> None:
    """Show the queues of a cluster, and check a file of queues."""


@queue.command(name="list", epilog=examples("understudy queue list", "understudy queue list --json"))
@configured
@json_option
def queue_list(configuration: Configuration, as_json: bool) -> None:
    """List the queues with their use, their users, and the requests for slots that wait."""
    from runtime.protocol.leader import RESOURCE_MANAGER
    from runtime.protocol.resource_manager import ResourceManagerGateway

    with connected(configuration) as client:
        found = client.call(RESOURCE_MANAGER, ResourceManagerGateway, lambda manager: manager.request_queues().result())
    if found.problem:
        say(f"warning: the file of queues is not used as it is: {found.problem}")
    if as_json:
        print_document(found)
        return
    rows = []
    for each in found.queues:
        whole = (each.name, "", f"{each.weight:g}", str(each.priority))
        use = (_of(each.slots, each.slots_limit), _of(each.running_jobs, each.running_jobs_limit))
        sizes = (
            _of(each.memory_mb, each.memory_mb_limit),
            _of(each.cpus, each.cpus_limit),
            _of(each.blob_mb, each.blob_mb_limit),
        )
        rows.append((*whole, *use, *sizes, str(each.waiting), f"{each.slot_seconds:.0f}"))
        for user in each.users:
            own = (str(user.slots), "", _of(user.memory_mb, None), _of(user.cpus, None), "")
            rows.append(("", user.user or "-", "", "", *own, str(user.waiting), f"{user.slot_seconds:.0f}"))
    used = ("SLOTS", "JOBS", "MEMORY MB", "CPUS", "BLOBS MB")
    print_table(("QUEUE", "USER", "WEIGHT", "PRIORITY", *used, "WAITING", "SLOT-SECONDS"), rows)
    if found.limits:
        print_line("")
        limits = [
            (
                f"{each.kind} {each.name}",
                _of(each.slots, each.slots_limit),
                _of(each.running_jobs, each.running_jobs_limit),
                _of(each.memory_mb, each.memory_mb_limit),
                _of(each.cpus, each.cpus_limit),
                _of(each.blob_mb, each.blob_mb_limit),
            )
            for each in found.limits
        ]
        print_table(("USER OR GROUP", *used), limits)
    if found.waiting:
        print_line("")
        waits = [(each.job_id, each.job_name, each.user or "-", each.reason) for each in found.waiting]
        print_table(("JOB", "NAME", "USER", "WAITS FOR"), waits)


def _of(used: float, limit: float | None) -> str:
    return f"{used:.12g}" if limit is None else f"{used:.12g} of {limit:.12g}"


@queue.command(name="check", epilog=examples("understudy queue check /etc/understudy/queues.yaml"))
@json_option
@click.argument("file", type=click.Path(path_type=Path))
def queue_check(file: Path, as_json: bool) -> None:
    """Check FILE, a file for queues.file, without a cluster."""
    from runtime.cluster.documents import CheckedQueues
    from runtime.cluster.preflight import read_queues

    names = [each.name for each in read_queues(file).queues]
    answer = CheckedQueues(str(file), tuple(names))
    print_answer(answer, f"{file} is right: the queues are {', '.join(names)}", as_json)
