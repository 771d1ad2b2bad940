"""What README and the pages quote is true: messages of the product, commands and their options, measured figures."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import click
import pytest

from runtime.cluster.cli import cli
from runtime.rest.handlers import ROUTES
from tests.bench.quoted import QUOTED, differing, quoted_figures

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MESSAGES = re.findall(r"^### `(.+)`$", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
COMMAND = re.compile(r"^(?:    |\$ )?(?:\w+=\$\()?understudy ([^#\n]*?)\)?\s*(?:#.*)?$", re.MULTILINE)


@cache
def texts() -> tuple[str, ...]:
    """All texts of the product; a zero byte stands for what an f-string fills in."""
    found = set()
    for package in ("actors", "blob", "conf", "runtime"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    found.add("".join(str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
    return tuple(found)


def is_said(message: str) -> bool:
    parts = [re.escape(part.strip()) for part in message.split("...") if part.strip()]
    pattern = re.compile(".*".join(parts), re.DOTALL)
    return any(pattern.search(text) for text in texts())


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_the_troubleshooting_page_is_one_of_the_product(message: str) -> None:
    assert is_said(message)


def test_the_troubleshooting_page_has_messages_and_a_made_up_one_is_noticed() -> None:
    assert len(MESSAGES) > 12
    assert not is_said("the cluster in ... is not running: its mistress is gone")


def unknown_words(line: str) -> list[str]:
    """Return the subcommands and options of a command line that the program does not have."""
    words = shlex.split(re.split(r"[|>]| && | {3,}", line)[0])
    command: click.Command = cli
    while isinstance(command, click.Group):
        if not words or words[0].startswith("-") or words[0].isupper():
            return []
        if words[0] not in command.commands:
            return [words[0]]
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    own = words
    for number, word in enumerate(words):
        if word == "--" or word.endswith((".py", "FILE")):  # what follows is the job's
            own = words[:number]
            if word.endswith("helpers.py"):
                own = words
            break
    options = [word.partition("=")[0] for word in own if word.startswith("-") and word != "-"]
    return [option for option in options if option not in known | {"--help", "--version"}]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_exist(page: Path) -> None:
    lines = [line for line in COMMAND.findall(page.read_text().replace("\\\n", " ")) if "COMMAND" not in line]
    assert {line: unknown for line in lines if (unknown := unknown_words(line))} == {}


def test_a_command_that_does_not_exist_is_noticed() -> None:
    assert unknown_words("job walk x.py") == ["walk"]
    assert unknown_words("job run --fast x.py --out y") == ["--fast"]
    assert unknown_words("job run x.py --out y") == []


def unnamed_fields(page: str) -> dict[str, set[str]]:
    """Return the fields of requests that a page does not name, by their routes."""
    named = set(re.findall(r"`([^`\s]+)`", page))
    found = {f"{route.method} {route.path}": set((route.form or {}).get("properties", ())) - named for route in ROUTES}
    return {route: fields for route, fields in found.items() if fields}


def test_the_rest_page_names_every_field_of_a_request() -> None:
    page = (ROOT / "docs" / "rest.md").read_text()
    assert unnamed_fields(page) == {}
    assert set(unnamed_fields(page.replace("`queue`", ""))) == {"POST /scripts"}


def test_readme_is_short_and_names_the_command_by_its_name() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert "runtime.cluster" not in text
    assert "make demo" in text
    assert "make test" in text
    for picture in re.findall(r'(?:src|srcset)="([^"]+)"', text):
        assert (ROOT / picture).stat().st_size < 400_000, picture


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "DESIGN.md"])
def test_links_of_pages_outside_the_site_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_quoted_figures_are_those_of_the_performance_page() -> None:
    assert differing() == []
    assert sum(len(QUOTED.findall(page.read_text())) for page in PAGES) > 10


def test_a_figure_that_differs_is_noticed() -> None:
    figures = {"submit/cli_finished_s": "1.03"}
    assert quoted_figures("in 1.03 s<!-- submit/cli_finished_s --> and", figures) == []
    assert quoted_figures("in 0.8 s<!-- submit/cli_finished_s --> and", figures) == [
        ("submit/cli_finished_s", "0.8", "1.03")
    ]
    assert quoted_figures("in 7<!-- submit/unknown -->", figures) == [("submit/unknown", "7", "")]
