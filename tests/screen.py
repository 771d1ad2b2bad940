"""What a terminal shows after a program has written to it: enough of ECMA-48 for progress bars that are redrawn."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+|\x1b[^\[]?")


def screen_of(written: str) -> list[str]:
    """Return the lines that the terminal shows at the end, with their colours as escape sequences."""
    lines, row = [""], 0
    for token in _TOKEN.finditer(written):
        text, (argument, command) = token[0], token.groups()
        if text == "\n":
            row += 1
        elif command == "A":
            row = max(0, row - int(argument or 1))
        elif command == "K":
            lines[row] = ""
        elif command == "m" or (command is None and text[0] not in "\r\x1b"):
            lines[row] += text
        while row >= len(lines):
            lines.append("")
    while lines and not lines[-1]:
        lines.pop()
    return lines
