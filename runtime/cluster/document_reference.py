"""Writes the reference of what commands print as JSON, from `runtime.cluster.documents`.

``python -m runtime.cluster.document_reference --write`` puts it into ``docs/json.md``, and the JSON Schema into
``docs/understudy-v1.schema.json``.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from runtime.cluster.documents import DOCUMENTS
from runtime.cluster.output import SCHEMA
from runtime.protocol.execution_state import JobStatus

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, SCHEMA_FILE = DOCS / "json.md", DOCS / "understudy-v1.schema.json"

_HEAD = f"""\
# JSON of the command line

<!-- Written by `python -m runtime.cluster.document_reference --write` from documents.py beside it: change that. -->

Every command but `demo`, `completion`, `history` and `history-server` has `--json`. It prints one JSON value to
standard output and nothing else; `understudy job logs -f --json` prints one object on each line. This page is the
reference of these values.
[{SCHEMA_FILE.name}]({SCHEMA_FILE.name}) is the same as JSON Schema: `$defs` has each object by its name, and
`x-commands` which command prints what.

- **Version.** Each object that a command prints has `"schema": "{SCHEMA}"`. Later releases may add fields to
  `{SCHEMA}`, so ignore fields that you do not know. To rename a field, to remove it or to change its meaning takes a
  `v2`.
- **Lists** are JSON arrays: `jq '.[]'` reads them. Each object in a list has its `schema`, and keeps it when it is
  taken out of the list.
- **Words.** `state` is the state of a job, task, attempt, vertex, checkpoint or request; `task_executor` the name of a
  TaskExecutor; `job_id` the id of a job. `*_ms` is a moment in milliseconds since 1970, and `duration_ms` a length of
  time. `bytes` and `*_bytes` are sizes in bytes.
- **States** have Flink's names. A job is {", ".join(f"`{status.value}`" for status in JobStatus)}.

For example:

    understudy job list --json | jq -r '.[] | select(.state == "RUNNING") | .job_id'
    understudy job info latest --json | jq -r '.failure.message'
    understudy status --json | jq '.task_executors[] | {{task_executor, free_slots}}'

## What each command prints
"""


def schema_of(command: str, *, strict: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of what a command prints.

    Args:
        command: its words, such as ``job list``.
        strict: refuse fields that no model has, which a reader of another version must not do.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "anyOf": [_answer(kind, strict) for kind in DOCUMENTS[command]],
        "$defs": {model.__name__: _object(model, strict) for model in _models(*DOCUMENTS[command])},
    }


def render_schema() -> str:
    """Return the JSON Schema of all commands as text."""
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "title": "What Understudy's commands print with --json",
        "x-commands": {
            command: {"anyOf": [_answer(kind, strict=False) for kind in kinds]} for command, kinds in DOCUMENTS.items()
        },
        "$defs": {model.__name__: _object(model, strict=False) for model in _all_models()},
    }
    return json.dumps(whole, indent=1) + "\n"


def _answer(kind: Any, strict: bool) -> dict[str, Any]:
    """Return the schema of a value that is printed: an object with ``schema``, or a list of such objects."""
    if get_origin(kind) is list:
        return {"type": "array", "items": _answer(get_args(kind)[0], strict)}
    model = _object(kind, strict)
    return {
        **model,
        "properties": {"schema": {"const": SCHEMA}, **model["properties"]},
        "required": ["schema", *model["required"]],
    }


def _object(model: type, strict: bool) -> dict[str, Any]:
    hints = get_type_hints(model)
    return {
        "type": "object",
        "properties": {name: _schema(hints[name]) for name in _names(model)},
        "required": _names(model),
        **({"additionalProperties": False} if strict else {}),
    }


def _schema(hint: Any) -> dict[str, Any]:
    if hint is Any:
        return {}
    if hint is NoneType:
        return {"type": "null"}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return {"anyOf": [_schema(argument) for argument in arguments]}
    if origin in (list, tuple):
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if issubclass(hint, kind):
            return {"type": name}
    raise TypeError(f"no JSON Schema for {hint}")


def _names(model: type) -> list[str]:
    return [field.name for field in fields(model)]


def _all_models() -> list[type]:
    return _models(*(kind for kinds in DOCUMENTS.values() for kind in kinds))


def _models(*kinds: Any) -> list[type]:
    """Return the models in some hints and in their fields, each once, outer ones first."""
    found: dict[type, None] = {}
    waiting = list(kinds)
    while waiting:
        for model in _dataclasses(waiting.pop(0)):
            if model not in found:
                found[model] = None
                waiting += get_type_hints(model).values()
    return list(found)


def _dataclasses(hint: Any) -> Iterator[type]:
    if is_dataclass(hint):
        assert isinstance(hint, type)
        yield hint
    for argument in get_args(hint):
        yield from _dataclasses(argument)


# --------------------------------------------------------------------- the page


def render_page() -> str:
    """Return the page in Markdown."""
    lines = [_HEAD, "| command | prints |", "| --- | --- |"]
    for command, kinds in DOCUMENTS.items():
        lines.append(f"| `{command}` | {' or '.join(map(_linked, kinds))} |")
    for model in _all_models():
        hints, meanings = get_type_hints(model), _meanings(model)
        lines += ["", f"## {model.__name__}", "", _summary(model), "", "| field | type | |", "| --- | --- | --- |"]
        lines += [f"| `{name}` | {_linked(hints[name])} | {meanings.get(name, '')} |" for name in _names(model)]
    return "\n".join(lines) + "\n"


def _linked(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return "any"
    if hint is NoneType:
        return "null"
    if origin in (Union, UnionType):
        return " or ".join(map(_linked, arguments))
    if origin in (list, tuple):
        return f"list of {_linked(arguments[0])}"
    if origin is dict:
        return f"object of {_linked(arguments[1])}"
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if issubclass(hint, Enum):
        return ", ".join(f"`{member.value}`" for member in hint)
    return str(_schema(hint)["type"])


def _summary(model: type) -> str:
    summary = " ".join(inspect.getdoc(model).partition("\n\n")[0].split())  # type: ignore[union-attr]
    return _plain(summary)


def _meanings(model: type) -> dict[str, str]:
    """Return what the docstring of a model says of its fields."""
    section = re.split(r"\n(?:Attributes|Args):\n", inspect.getdoc(model) or "")
    found = re.findall(r"^ {4}(\w+): ((?:.|\n {8})*)", section[1], re.MULTILINE) if len(section) > 1 else []
    return {name: _plain(" ".join(text.split())) for name, text in found}


def _plain(text: str) -> str:
    """Return text of a docstring for the page: without the names of classes of the project and of Flink's."""
    text = re.sub(r"\s*\((?:Flink|Spark)'s [^)]*\)", "", text)
    return text.replace("``", "`").replace("|", "\\|")


def main() -> None:
    """Print the page, or write page and schema."""
    if "--write" in sys.argv[1:]:
        PAGE.write_text(render_page())
        SCHEMA_FILE.write_text(render_schema())
    else:
        print(render_page(), end="")  # noqa: T201


if __name__ == "__main__":
    main()
