"""Reference of every option.

``python -m conf.reference`` prints it, ``--write`` writes it to ``docs/configuration.md``, and ``--check`` fails when
that file is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from conf.option import ConfigOption
from conf.options import AREAS, REMOVED_OPTIONS, Area

REFERENCE_FILE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

_HEAD = """\
# Configuration

<!-- Written by `python -m conf.reference --write` from the declarations in conf/options: change those, not this. -->

Values come from four layers; later ones override earlier ones:

1. the defaults below;
2. the packaged `conf/config.yaml`;
3. the user's `config.yaml`, named with `--config FILE`, or in the directory that `UNDERSTUDY_CONF_DIR` names;
4. `-D key=value` on the command line.

Keys may be nested or flat. An empty value resets an option to its default. An unknown key is an error that names the
nearest known key. But keys that start with `spark.` go to the Spark drivers unchanged.

- A *Duration* has its unit: `300 ms`, `10 s`, `5 min`, `1 h`, `7 d`.
- A *MemorySize* has its unit, in powers of 1024: `64 kb`, `10 mb`, `1 g`; a bare number is bytes.
- A *Path* may start with `~`; a relative one is relative to the current directory.
- Logs and listings never show the password of a *Secret URL*.

Options that Flink has, too, have Flink's names. Names after "Also" set the same option; one layer may use only one of
them.

A name after "Formerly" still works in the release that renamed the option, with a warning. The next release rejects it.
If one layer sets an option by its present and a former name, the present name wins, as in Flink. A later layer wins
over an earlier one, by any name. The release that removes an option ignores it with a warning, and the next release
rejects it. A process shows each warning once. `understudy doctor` lists them.
"""


def render_reference() -> str:
    """Return the whole page, in Markdown."""
    return "\n".join([_HEAD, *(_render_area(area) for area in AREAS), *_render_removed()])


def _render_removed() -> list[str]:
    if not REMOVED_OPTIONS:
        return []
    lines = [
        "## Removed options",
        "",
        "These have no effect.",
        "",
        "| Key | Removed in | Remedy |",
        "| --- | --- | --- |",
    ]
    lines += [f"| `{removed.key}` | {removed.since} | {removed.remedy} |" for removed in REMOVED_OPTIONS]
    return ["\n".join(lines) + "\n"]


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
        expected = value_type.expected
        notes.append(f"({expected[:1].upper()}{expected[1:]}.)")
    if option.fallback_keys:
        notes.append("Also: " + ", ".join(f"`{key}`" for key in option.fallback_keys) + ".")
    if option.deprecated_keys:
        names = (f"`{former.key}` (renamed in {former.since})" for former in option.deprecated_keys)
        notes.append("Formerly: " + ", ".join(names) + ".")
    default = option.default_text if option.default_text == "(none)" else f"`{option.default_text}`"
    cells = (f"`{option.key}`", default, value_type.name, " ".join(notes))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main(arguments: list[str]) -> int:
    """Run the command; return its exit status: 1 if ``--check`` finds the file out of date, 2 for a wrong argument."""
    page = render_reference()
    if arguments == ["--write"]:
        REFERENCE_FILE.parent.mkdir(exist_ok=True)
        REFERENCE_FILE.write_text(page, "utf-8")
    elif arguments == ["--check"]:
        if not REFERENCE_FILE.exists() or REFERENCE_FILE.read_text("utf-8") != page:
            sys.stderr.write(f"error: {REFERENCE_FILE} is out of date\nremedy: python -m conf.reference --write\n")
            return 1
    elif arguments:
        sys.stderr.write("error: expected --write, --check or nothing\nremedy: python -m conf.reference\n")
        return 2
    else:
        sys.stdout.write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
