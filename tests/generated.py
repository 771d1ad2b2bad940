"""Files that are made from the code: ``python -m tests.generated --write`` makes them anew, a unit test holds them.

- `runtime/notebook/gateways.py`: the methods of gateways as they are for who waits for the replies, for type checkers.
- `docs/api.md`: the public API, from the docstrings of `understudy.__all__`.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from actors.rpc.gateway import gateway_methods
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.master import MasterGateway
from runtime.protocol.resource_manager import ResourceManagerGateway

ROOT = Path(__file__).resolve().parents[1]
GATEWAYS = (DispatcherGateway, MasterGateway, ResourceManagerGateway)

_GATEWAYS_HEAD = '''\
"""Gateways as `Cluster.dispatcher` and its like have them: an ``Ask[T]`` has become ``T``. For type checkers alone.

Made by ``python -m tests.generated --write`` from the gateways in `runtime.protocol`.
"""

from __future__ import annotations

from typing import Protocol

'''


def gateways_module() -> str:
    """Return the text of `runtime/notebook/gateways.py`."""
    imports: set[tuple[str, str]] = set()
    classes = []
    for gateway in GATEWAYS:
        methods = []
        for _, method in sorted(gateway_methods(gateway).items()):
            declared = ast.parse(textwrap.dedent(inspect.getsource(method))).body[0]
            assert isinstance(declared, ast.FunctionDef)
            returns = re.sub(r"^Ask\[(.*)\]$", r"\1", ast.unparse(declared.returns or ast.Constant(None)))
            text = f"def {declared.name}({ast.unparse(declared.args)}) -> {returns}: ..."
            for word in re.findall(r"[A-Za-z_]\w*", text):
                value = method.__globals__.get(word)
                if isinstance(value, type):
                    imports.add((value.__module__, word))
                elif value is not None:  # an alias, of the gateway's own module
                    imports.add((method.__module__, word))
            methods.append(f"    {text}\n")
        name = f"Synchronous{gateway.__name__}"
        doc = f'    """`{gateway.__name__}`, waiting for each reply."""\n\n'
        classes.append(f"class {name}(Protocol):\n{doc}{''.join(methods)}\n\n")
    lines = [f"from {module} import {name}\n" for module, name in sorted(imports)]
    return _formatted("".join([_GATEWAYS_HEAD, *lines, "\n\n", *classes]))


def _formatted(text: str) -> str:
    """Python text as ``ruff`` has it: its imports sorted, its lines broken."""
    for options in (["check", "--fix-only", "--select", "I"], ["format"]):
        command = [
            sys.executable,
            "-m",
            "ruff",
            *options,
            "--quiet",
            "--stdin-filename",
            str(ROOT / "runtime/x.py"),
            "-",
        ]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


FILES = {ROOT / "runtime/notebook/gateways.py": gateways_module}


def main() -> int:
    """Write the files, or say which of them are not up to date; the exit status is then 1."""
    stale = [path for path, make in FILES.items() if not path.exists() or path.read_text("utf-8") != make()]
    for path in stale:
        if "--write" in sys.argv:
            path.write_text(FILES[path](), "utf-8")
        else:
            sys.stderr.write(f"{path.relative_to(ROOT)} is not up to date: run python -m tests.generated --write\n")
    return int(bool(stale) and "--write" not in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
