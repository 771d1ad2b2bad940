"""The screen that pictures of the terminal are drawn from."""

from __future__ import annotations

from tests.screen import screen_of


def test_a_bar_that_is_redrawn_is_shown_once_as_it_was_last() -> None:
    bars = "read 10%\ncount 0%\n" + "\x1b[1A\x1b[2K" * 2 + "\rread \x1b[32m100%\x1b[0m\ncount 50%\n"
    assert screen_of(f"job 1 was submitted\n\x1b[?25l{bars}\x1b[?25hdone\n") == [
        "job 1 was submitted",
        "read \x1b[32m100%\x1b[0m",
        "count 50%",
        "done",
    ]
