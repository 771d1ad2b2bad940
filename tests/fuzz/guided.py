"""The coverage-guided fuzzer (atheris, that is libFuzzer) in its own process: ``guided TARGET [libFuzzer's flags]``.

libFuzzer ends the process: with status 0 when its time is over, with another when it has found something.
"""

from __future__ import annotations

import importlib
import os
import sys

import atheris

from actors.process.thespian_base import die_with_parent

TARGETS = ("decoder", "handshake", "serializer", "blob")
_INSTRUMENTED = (
    "actors.rpc.wire",
    "actors.rpc.wire",
    "actors.rpc.security",
    "actors.rpc.codec",
    "actors.serialization",
    "actors.serialization",
    "actors.ref",
    "actors.address",
    "blob.protocol",
    "blob.key",
    "blob.server",
    "blob.storage",
    # MessagePack's own decoder is compiled; it is not what is to be found out about here.
    "tests.fuzz",
)


def main() -> None:
    """Fuzz the target that the command line names, in a fork of this process.

    Linux takes the peak memory of whoever starts a process for its own, over the exec, and libFuzzer would hold its
    limit against that of the tests. A fork begins anew.
    """
    fuzzer = os.fork()
    if fuzzer:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(fuzzer, 0)[1]))
    die_with_parent()
    with atheris.instrument_imports(include=list(_INSTRUMENTED)):
        target = importlib.import_module(f"tests.fuzz.{sys.argv[1]}")
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
