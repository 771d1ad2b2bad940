"""Examples that ``--help`` shows, by command; a test parses each of them."""

from __future__ import annotations

import click

EXAMPLES: dict[str, tuple[str, ...]] = {
    "start": (
        "understudy start -D taskmanager.count=2",
        "understudy start --masters 2",
        "understudy start --json",
        "understudy start --role task-executor --config /etc/understudy/config.yaml",
        "understudy start --hosts",
    ),
    "master": ("understudy master",),
    "stop": ("understudy stop", "understudy stop -D cluster.id=second", "understudy stop --role master"),
    "status": ("understudy status", "understudy status --json"),
    "doctor": ("understudy doctor", "understudy doctor --start-spark --json"),
    "completion": (
        'eval "$(understudy completion bash)"      # in ~/.bashrc',
        "understudy completion fish > ~/.config/fish/completions/understudy.fish",
    ),
    "job run": (
        "understudy job run examples/flight_delays.py -- --out /tmp/delays",
        "understudy job run --py-files helpers.py --requirements requirements.txt job.py",
        "understudy job run --detach -D restart-strategy.type=fixed-delay job.py",
        "understudy job run --target per-job --masters 2 job.py",
        "understudy job run --target application examples/application.py -- 20000",
    ),
    "job explain": ("understudy job explain --format svg examples/flight_delays.py -- --out /tmp/delays",),
    "job list": ("understudy job list", "understudy job list --json"),
    "job info": ("understudy job info 0f3c5a0f3c5a0f3c5a0f3c5a0f3c5a0f",),
    "job exceptions": ("understudy job exceptions", "understudy job exceptions --json"),
    "job logs": ("understudy job logs -f 0f3c5a0f3c5a0f3c5a0f3c5a0f3c5a0f",),
    "job checkpoint": ("understudy job checkpoint 0f3c5a0f3c5a0f3c5a0f3c5a0f3c5a0f",),
    "job savepoint": ("understudy job savepoint 0f3c5a0f3c5a0f3c5a0f3c5a0f3c5a0f /savepoints",),
    "job stop": ("understudy job stop --drain --savepoint /savepoints 0f3c5a0f3c5a0f3c5a0f3c5a0f3c5a0f",),
    "job cancel": ("understudy job cancel --no-wait 0f3c5a0f3c5a0f3c5a0f3c5a0f3c5a0f",),
    "savepoint list": ("understudy savepoint list /savepoints",),
    "savepoint info": ("understudy savepoint info /savepoints/savepoint-0f3c5a-1",),
    "savepoint verify": ("understudy savepoint verify /savepoints/savepoint-0f3c5a-1",),
    "savepoint dispose": ("understudy savepoint dispose /savepoints/savepoint-0f3c5a-1",),
    "savepoint check": ("understudy savepoint check --query counts /savepoints/savepoint-0f3c5a-1 /tmp/trial",),
    "savepoint state": ("understudy savepoint state --limit 5 /savepoints/savepoint-0f3c5a-1",),
}


def show_examples(cli: click.Group) -> None:
    """Let the help of each command show its examples."""
    for words, lines in EXAMPLES.items():
        command: click.Command = cli
        for word in words.split():
            assert isinstance(command, click.Group)
            command = command.commands[word]
        command.epilog = "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))
