"""An actor system on one host that watches an actor on another, while the cable between them is cut and put in again.

    python -m tests.faults.cut_actors serve|watch HOST SECRET_FILE [PORT | ADDRESS]

``watch`` says each step on standard output, and waits for a line on standard input before it goes on.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from actors import ActorSystem, Props, RecipientUnreachable
from actors.testkit import TestProbe
from tests.integration.actors_kit import DEADLINE_S, QUICK, Echo, await_actor


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def _serve(host: str, secret_file: Path, port: int) -> None:
    with ActorSystem("other", host=host, port=port, secret_file=secret_file, config=QUICK) as system:
        system.actor_of(Props(Echo).local(), "echo")
        watcher = TestProbe(system)
        _say(str(system.address).removesuffix("/user"))
        path = sys.stdin.readline().strip()
        if not path:
            return  # its input has ended: it is not told whom to watch
        far = await_actor(system, path)
        watcher.watch(far)  # both sides have to see that the other is gone
        _say("watching")
        sys.stdin.readline()


def _watch(host: str, secret_file: Path, address: str) -> None:
    with ActorSystem("here", host=host, secret_file=secret_file, config=QUICK) as system:
        system.actor_of(Props(Echo).local(), "echo")
        probe = TestProbe(system)
        echo = await_actor(system, f"{address}/user/echo")
        probe.watch(echo)
        assert echo.ask("x").result() == "x"
        _say(f"{str(system.address).removesuffix('/user')}/user/echo")
        assert probe.expect_terminated(echo, DEADLINE_S).address_terminated
        _say("terminated")
        sys.stdin.readline()  # the cable is in again
        try:
            echo.ask("x", 2.0).result()
        except RecipientUnreachable as error:
            _say(f"unreachable: {type(error).__name__}")
        else:
            _say("answered")
        sys.stdin.readline()  # the other system was started anew, at the same port
        again = await_actor(system, f"{address}/user/echo", echo)
        _say(f"again {again.ask('x').result()}")


if __name__ == "__main__":
    logging.basicConfig(level="INFO", stream=sys.stderr)
    what, own_host, file, rest = sys.argv[1:5]
    if what == "serve":
        _serve(own_host, Path(file), int(rest))
    else:
        _watch(own_host, Path(file), rest)
