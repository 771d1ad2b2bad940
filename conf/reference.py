"""Writes the reference of every option: ``python -m conf.reference`` prints it, ``--write`` puts it into
``docs/configuration.md``, ``--check`` fails when that file is not true."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from conf.option import ConfigOption
from conf.options import AREAS, Area

REFERENCE_FILE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

_HEAD = """\
# Configuration

<!-- Written by `python -m conf.reference --write` from the declarations in conf/options: change those, not this. -->

Values come from four layers, the later ones winning: the defaults below; the packaged `conf/config.yaml`; the user's
`config.yaml`, named with `--config FILE` or lying in the directory that `UNDERSTUDY_CONF_DIR` names; `-D key=value` on
the command line. Keys may be nested or flat. An empty value puts an option back to its default. A key that does not
exist is an error that names the nearest one, except that any key that starts with `spark.` goes to the Spark drivers as
it is.

- A *Duration* has its unit: `300 ms`, `10 s`, `5 min`, `1 h`, `7 d`.
- A *MemorySize* has its unit, in powers of 1024: `64 kb`, `10 mb`, `1 g`; a bare number is bytes.
- A *Path* may start with `~`; a relative one is taken from the current directory.
- A *Secret URL* is never shown with its password, neither in logs nor in listings.

Names are Flink's where Flink has the notion. Where a line says "also", the other names are understood too.
"""


def render_reference() -> str:
    """The whole page, in Markdown."""
    return "\n".join([_HEAD, *(_render_area(area) for area in AREAS)])


def _render_area(area: Area) -> str:
    lines = [
        f"## {area.title}",
        "",
        area.description,
        "",
        "| Key | Default | Type | Description |",
        "| --- | --- | --- | --- |",
    ]
    lines += [_render_option(option) for option in area]
    return "\n".join(lines) + "\n"


def _render_option(option: ConfigOption[Any]) -> str:
    value_type = option.value_type
    notes = [option.description]
    if value_type.name in ("Enum", "Integer", "Double"):
        notes.append(f"({value_type.expected.capitalize()}.)")
    if option.fallback_keys:
        notes.append("Also: " + ", ".join(f"`{key}`" for key in option.fallback_keys) + ".")
    if option.deprecated_keys:
        notes.append("Formerly: " + ", ".join(f"`{key}`" for key in option.deprecated_keys) + ".")
    default = option.default_text if option.default_text == "(none)" else f"`{option.default_text}`"
    cells = (f"`{option.key}`", default, value_type.name, " ".join(notes))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main(arguments: list[str]) -> int:
    """The command; returns the exit status: 1 when ``--check`` finds the file untrue, 2 for a wrong argument."""
    page = render_reference()
    if arguments == ["--write"]:
        REFERENCE_FILE.parent.mkdir(exist_ok=True)
        REFERENCE_FILE.write_text(page, "utf-8")
    elif arguments == ["--check"]:
        if not REFERENCE_FILE.exists() or REFERENCE_FILE.read_text("utf-8") != page:
            sys.stderr.write(f"error: {REFERENCE_FILE} is not true\nremedy: python -m conf.reference --write\n")
            return 1
    elif arguments:
        sys.stderr.write("error: expected --write, --check or nothing\nremedy: python -m conf.reference\n")
        return 2
    else:
        sys.stdout.write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
