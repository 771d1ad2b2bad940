"""The coverage-guided fuzzer (atheris, that is libFuzzer) in its own process: ``guided TARGET [libFuzzer's flags]``.

libFuzzer ends the process: with status 0 when its time is over, with another when it has found something.
"""

from __future__ import annotations

import importlib
import sys

import atheris

TARGETS = ("decoder", "handshake", "serializer")
_INSTRUMENTED = (
    "actors.rpc.wire",
    "actors.rpc.security",
    "actors.rpc.codec",
    "actors.serialization",
    "actors.core.hints",
    "actors.ref",
    "actors.address",
    # MessagePack's own decoder is compiled; it is not what is to be found out about here.
    "tests.fuzz",
)


def main() -> None:
    """Fuzz the target that the command line names."""
    with atheris.instrument_imports(include=list(_INSTRUMENTED)):
        target = importlib.import_module(f"tests.fuzz.{sys.argv[1]}")
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
