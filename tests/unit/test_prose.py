"""The prose linter finds what is planted, in pages and in modules, and nothing in code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.prose import (
    ALLOWED,
    MAX_WORDS,
    ROOT,
    Finding,
    Passage,
    check,
    files,
    findings_of,
    judge,
    passages_of_module,
    passages_of_page,
    place_of,
    rules,
)

PAGE = """# A page

Whoever starts it
is told so.

```bash
whoever goes on
```

    whoever goes on

- `whoever goes on`, "whoever goes on", [a page](whoever.md)
"""
MODULE = '''"""Whether it is so."""

LIMIT = 3  # whoever has more
# A query goes
# on afterwards.


def look(name):
    """Return a value.

    Args:
        name: the job goes on under it.

    An example::

        whoever()
    """
    raise ValueError(f"{name} is told about the limit")
'''


def lines(found: list[Finding]) -> list[tuple[int, str]]:
    return sorted((finding.line, finding.text) for finding in found)


def found_in(passages: object) -> list[Finding]:
    return [finding for passage in passages for finding in check("a file", passage)]  # type: ignore[attr-defined]


def test_planted_words_are_found_in_a_page_and_code_is_left_alone() -> None:
    assert lines(found_in(passages_of_page(PAGE))) == [(3, "Whoever"), (4, "is told")]


def test_planted_words_are_found_in_docstrings_comments_and_texts() -> None:
    assert lines(found_in(passages_of_module(MODULE))) == [
        (1, "Whether"),
        (3, "whoever"),
        (4, "goes on"),
        (12, "goes on"),
        (18, "is told"),
    ]


def test_a_long_sentence_is_found() -> None:
    words = " ".join(["Word"] + ["word"] * (MAX_WORDS - 1))
    assert found_in([Passage(1, f"Short one. {words}. Another one.")]) == []
    (found,) = found_in([Passage(7, f"Short one.\n{words} more. Another one.")])
    assert found.line == 8
    assert f"{MAX_WORDS + 1} words" in found.advice


@pytest.mark.parametrize("number", range(len(rules())))
def test_every_rule_has_advice_and_leaves_its_own_advice_alone(number: int) -> None:
    rule = rules()[number]
    assert rule.advice
    assert not rule.pattern.search("The ResourceManager starts a TaskExecutor and logs its address.")


def test_a_place_with_more_than_its_allowance_is_named() -> None:
    found = [Finding("runtime/ha/x.py", 1, "a", ""), Finding("docs/x.md", 1, "b", ""), Finding("docs/x.md", 2, "c", "")]
    assert set(judge(found, {"docs/x.md": 1, "runtime": 1})) == {"docs/x.md"}
    assert judge(found, {"docs/x.md": 2, "runtime": 1}) == {}
    assert set(judge(found, {})) == {"docs/x.md", "runtime"}


def test_the_readme_and_each_allowance_are_looked_at() -> None:
    looked_at = [str(path.relative_to(ROOT)) for path in files()]
    assert {"README.md", "docs/index.md", "runtime/client.py"} <= set(looked_at)
    assert set(json.loads(ALLOWED.read_text())) <= {place_of(file) for file in looked_at}
    assert findings_of(Path(ROOT, "README.md")) == []
