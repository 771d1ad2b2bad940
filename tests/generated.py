"""Files that are made from the code: ``python -m tests.generated --write`` makes them anew, a unit test holds them.

- `runtime/notebook/gateways.py`: the methods of gateways as they are for who waits for the replies, for type checkers.
- `docs/api.md`: the public API, from the docstrings of `understudy.__all__`.
- `docs/roles.md`: which role each command, page action, path and call needs, from the table that decides it.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from enum import Enum
from pathlib import Path
from typing import Any

import understudy
from actors.rpc.gateway import gateway_methods
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.master import MasterGateway
from runtime.protocol.resource_manager import ResourceManagerGateway
from runtime.users import roles

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


# ------------------------------------------------------------------------- docs/api.md

_API_HEAD = """\
# Python API

All public names, which are those of the package `understudy`: `from understudy import connect`. This page is made from
their docstrings by `python -m tests.generated --write`.
"""

_PARTS = {
    "Clusters and jobs": (
        "runtime.notebook",
        "runtime.protocol",
        "runtime.client",
        "runtime.job_file",
        "runtime.checkpoint",
        "runtime.spark",
    ),
    "Pipelines": ("runtime.api",),
    "Embedded in a Spark program": ("runtime.embedded",),
    "Actors": ("actors",),
    "RPC": ("actors.rpc", "actors.receptionist", "actors.errors", "actors.service_system"),
    "Testing actors": ("actors.testkit",),
}
"""The parts of the page, and the packages whose public names stand in each; the longest one that fits."""

_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$")


def api_page() -> str:
    """Return the text of `docs/api.md`."""
    found: dict[str, list[str]] = {part: [] for part in _PARTS}
    for module, names in understudy._HOMES.items():
        found[_part_of(module)] += names
    lines = [_API_HEAD]
    for part, of_part in found.items():
        lines.append(f"## {part}\n")
        for name in sorted(of_part, key=str.lower):
            lines += _entry(name, getattr(understudy, name))
    return "\n".join(lines).rstrip() + "\n"


def _part_of(module: str) -> str:
    fitting = [
        (len(package), part)
        for part, packages in _PARTS.items()
        for package in packages
        if module == package or module.startswith(f"{package}.")
    ]
    return max(fitting)[1]


def _entry(name: str, value: Any) -> list[str]:
    lines = [f"### {name}\n"]
    if not isinstance(value, type):
        if callable(value) and hasattr(value, "__code__"):
            lines.append(f"```python\n{_signature(name, value)}\n```\n")
        return [*lines, *markdown(documentation(name, value))]
    kind = "exception" if issubclass(value, BaseException) else "class"
    lines.append(f"```python\n{kind} {_signature(name, value, of_class=True)}\n```\n")
    lines += markdown(documentation(name, value))
    if issubclass(value, Enum):
        return [*lines, f"Members: {', '.join(f'`{member.name}`' for member in value)}.\n"]
    for member, found in public_members(value):
        if isinstance(found, property):
            lines.append(f"**`{name}.{member}`** (property)\n")
        else:
            lines.append(f"```python\n{_signature(f'{name}.{member}', found)}\n```\n")
        lines += markdown(inspect.getdoc(found) or "")
    return lines


def public_members(kind: type) -> list[tuple[str, Any]]:
    """Return methods and properties of a public class that are its user's, those of other packages left out."""
    members = []
    for name in sorted({name for base in kind.__mro__ if _is_ours(base) for name in vars(base)}):
        found = inspect.getattr_static(kind, name)
        plain = found.__func__ if isinstance(found, classmethod | staticmethod) else found
        if not name.startswith("_") and (isinstance(found, property) or inspect.isfunction(plain)):
            members.append((name, plain))
    return members


def _is_ours(kind: type) -> bool:
    return kind.__module__.removeprefix("understudy.").split(".")[0] in ("actors", "blob", "conf", "runtime")


def documentation(name: str, value: Any) -> str:
    """Return the docstring of a public name; of an alias, the text below its assignment."""
    if isinstance(value, type) or inspect.isfunction(value):
        own = inspect.getdoc(value) or ""
        return "" if own.startswith(f"{name}(") else own  # one that dataclasses make
    source = inspect.getsource(sys.modules[f"understudy.{understudy._HOME_OF[name]}"])
    found = re.search(rf'^{name} = .*\n"""(.*?)"""$', source, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def _signature(name: str, function: Any, *, of_class: bool = False) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return name
    parameters = [item for item in signature.parameters.values() if of_class or item.name not in ("self", "cls")]
    returns = inspect.Signature.empty if of_class else signature.return_annotation
    text = str(signature.replace(parameters=parameters, return_annotation=returns)).replace("'", "")
    text = re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", text)  # defaults that are members of enums
    text = re.sub(
        r"<(?:function|class) ([\w.]+)[^>]*>", r"\1", re.sub(r"<factory>|<object object at \w+>", "...", text)
    )
    text = text.replace("typing.", "").replace("runtime.notebook.cluster.", "")
    prefix = "async " if inspect.iscoroutinefunction(function) else ""
    if len(text) > 90 and parameters:
        text = re.sub(r"^\(", "(\n    ", text)
    return f"{prefix}{name}{'' if text == '()' and of_class else text}"


def markdown(text: str) -> list[str]:
    """A docstring of ours as Markdown: its sections as lists."""
    lines: list[str] = []
    section = ""
    for line in text.splitlines():
        if heading := _SECTION.match(line):
            section = heading[1]
            lines += ["", f"*{section}:*", ""]
        elif section and not line.startswith("    ") and line:
            section = ""
            lines += ["", _escaped(line)]
        elif section in ("Returns", "Yields") or not section:
            lines.append(_escaped(line.strip()) if section else line if line.startswith("    ") else _escaped(line))
        elif re.match(r"^    \S", line):
            names, colon, rest = line.strip().partition(": ")
            lines.append(f"- `{names}`: {_escaped(rest)}" if colon else f"- {_escaped(line.strip())}")
        else:
            lines.append(f"  {_escaped(line.strip())}".rstrip())
    return [re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"]


def _escaped(line: str) -> str:
    """The line with no markup of HTML outside of code."""
    parts = line.split("`")
    return "`".join(part if index % 2 else part.replace("<", "&lt;") for index, part in enumerate(parts))


# ----------------------------------------------------------------------- docs/roles.md

_ROLES_HEAD = """\
# Which role each action needs

A [user](security.md#users-and-roles) has one of the roles `metrics`, `viewer`, `user`, `operator` and `admin`. Each of
the last four may do all that the one before it may. "Own" are the jobs that the user has submitted, and the user's own
tokens. This page is made from `runtime.users.roles` by `python -m tests.generated --write`. The web endpoint decides by
that table (`unit/test_rest_roles.py::test_each_route_allows_each_role_what_the_table_says`,
`unit/test_rest_roles.py::test_each_call_allows_each_role_what_the_table_says`).

On the cluster's machine, the cluster's own user may give all commands: they use the cluster's secret. Commands with
the role "none" work on files, log in, or act as a user of the machine.
"""


def roles_page() -> str:
    """Return the text of `docs/roles.md`."""
    rules = {**roles.ROUTES, **roles.CALLS}
    named = [(f"`understudy {name}`", roles.COMMANDS[name]) for name in sorted(roles.COMMANDS)]
    parts = {
        "Commands": [("command", "decided by"), *named],
        "The web page": [("action", "decided by"), *roles.PAGE.items()],
    }
    lines = [_ROLES_HEAD]
    for title, ((what, by), *rows) in parts.items():
        lines += [f"## {title}\n", f"| {what} | role | {by} |", "|---|---|---|"]
        lines += [f"| {name} | {_needed(rules.get(row))} | {f'`{row}`' if row else ''} |" for name, row in rows]
        lines.append("")
    tables = {"Paths of the REST API": roles.ROUTES, "Methods of components": roles.CALLS}
    for title, table in tables.items():
        lines += [f"## {title}\n", "| action | role |", "|---|---|"]
        lines += [f"| `{name}` | {_needed(table[name], name)} |" for name in sorted(table)]
        lines.append("")
    lines += [
        "A blob that was made for one reader needs the role `user`, and its key. A method of a component that is not",
        "here cannot be called by HTTP. A [Spark Connect session](connect.md) needs the role "
        f"{_needed(roles.SPARK_CONNECT)},",
        f"and [Spark's own pages](spark-history.md) need {_needed(roles.SPARK_HISTORY)}.",
    ]
    return "\n".join(lines) + "\n"


def _needed(rule: roles.Rule | None, name: str = "") -> str:
    if rule is None:
        return "none"
    if name == "POST /gateways/{gateway}/{method}":
        return "that of the method, see below"
    own = f"; `{rule.own.value}` for one's own" if rule.own is not None else ""
    return f"`{rule.lowest.value}`{own}"


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


FILES = {
    ROOT / "runtime/notebook/gateways.py": gateways_module,
    ROOT / "docs/api.md": api_page,
    ROOT / "docs/roles.md": roles_page,
}


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
