"""The rows of the actor contract.

`python -m tests.contract.actor_rows --write` brings ACTOR_BEHAVIOURS.md up to date.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
LISTING = HERE / "ACTOR_BEHAVIOURS.md"
SOURCES = ("Akka", "Pykka", "Thespian", "Ours")

INTRODUCTION = """\
# What the actors promise, row by row

Made by `python -m tests.contract.actor_rows --write` of the docstrings of the tests, one row each. A row is run on the
deterministic system and on a system of processes; many of them with the actors in the test's own process, in one that
they share, and in one each. "Ours" are promises that the others do not make.

Without a counterpart here:

| whose | what | why |
|---|---|---|
| Pykka | actor proxies, traversable attributes | an actor's attributes are its own; RPC gateways instead |
| Pykka | `ActorRegistry`: actors by class, URN or class name | actors are found by path: selections, with wildcards |
| Pykka | `tell` to a dead actor raises | a remote sender cannot know; the message is a dead letter, an `ask` fails |
| Pykka | the first unhandled exception stops the actor | Akka's default: its supervisor restarts it |
| Pykka | `map`, `filter`, `reduce` and `join` of futures | an `Ask` can be awaited: asyncio has them |
| Pykka | a `BaseException` stops all actors | it fails its own actor, and is escalated; `sys.exit()` stops that actor |
| Thespian | capabilities and requirements of actors | placement is said by `Props`, other systems by their address |
| Thespian | `loadActorSource`, source authorities | code never travels |
| Thespian | troupes, `ActorTypeDispatcher`, `initializing_messages` | routers; `match`; arguments of `Props` |
| Thespian | a failing message is delivered twice, then as `PoisonMessage` | it is dropped, and its asker told |
| Thespian | one handler for dead letters in each system | any number of subscribers |
| Thespian | `preRegisterRemoteSystem`, conventions | systems are reached by address |
| Akka | typed actors, FSM, persistence, named dispatchers | RPC gateways; the others are not of this layer |
| Akka | tail-chopping and balancing routers, resizers | not provided; `AdjustPoolSize` changes a pool |
"""


class Row(NamedTuple):
    """One promise.

    Args:
        module: the test's module.
        test: its name.
        sources: who promises it.
        promise: what is promised.
    """

    module: str
    test: str
    sources: tuple[str, ...]
    promise: str


def rows(module: Path) -> Iterator[Row]:
    """The rows of a module.

    Raises:
        ValueError: a test's docstring is not a row.
    """
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            text = " ".join((ast.get_docstring(node) or "").split())
            names, colon, promise = text.partition(": ")
            sources = tuple(names.split(", "))
            if not colon or not set(sources) <= set(SOURCES):
                raise ValueError(
                    f"{module.name}: the docstring of {node.name} begins with none of {', '.join(SOURCES)}"
                )
            yield Row(module.stem, node.name, sources, promise)


def all_rows() -> list[Row]:
    """The rows of all modules."""
    return [row for module in sorted(HERE.glob("test_actor_*.py")) for row in rows(module)]


def render() -> str:
    """The listing."""
    found = all_rows()
    lines = [INTRODUCTION, f"{len(found)} rows:"]
    for module in dict.fromkeys(row.module for row in found):
        title = re.sub("^test_actor_", "", module).replace("_", " ")
        lines += ["", f"## {title.capitalize()} (`{module}.py`)", "", "| whose | what | test |", "|---|---|---|"]
        lines += [
            f"| {', '.join(row.sources)} | {row.promise.replace('|', '/')} | `{row.test}` |"
            for row in found
            if row.module == module
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        LISTING.write_text(render())
    elif LISTING.read_text() != render():
        sys.exit(f"{LISTING} is not up to date: python -m tests.contract.actor_rows --write")
