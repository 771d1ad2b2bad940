"""Makes the pictures of README from a real run: ``make pictures``, which needs Chromium.

It starts a cluster in a directory of its own, runs `examples/flight_delays.py` on a pseudo-terminal, draws what the
terminal shows at the end, and photographs the job's page. Each picture is made for a light and a dark background.
"""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from fcntl import ioctl
from pathlib import Path

from playwright.sync_api import Browser, expect, sync_playwright
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, MONOKAI, TerminalTheme
from rich.text import Text

from tests.browser.conftest import CHROMIUM, FLAGS
from tests.screen import screen_of

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
COLUMNS = 92
SHOWN_LINES = 30
"""Lines of the terminal in the picture, from the top."""
PAGE = {"width": 1200, "height": 720}
THEMES: dict[str, TerminalTheme] = {"light": DEFAULT_TERMINAL_THEME, "dark": MONOKAI}
SETTINGS = "rest.port: 0\njobmanager.rpc.port: 0\n"
JOB = ("job", "run", "examples/flight_delays.py", "--", "--out")
OUT = "delays"
_FONT = re.compile(r"@font-face\s*\{[^}]*\}")


def understudy(*words: str) -> str:
    """Run a command and return its standard output."""
    return subprocess.run(
        [sys.executable, "-m", "understudy", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def on_a_terminal(*words: str) -> str:
    """Run a command on a pseudo-terminal and return all that it wrote there. Raises CalledProcessError."""
    controller, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "understudy", *words],
        cwd=ROOT,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)},
    )
    os.close(terminal)
    parts = []
    while True:
        try:
            part = os.read(controller, 65536)
        except OSError:  # Linux: the last process has closed the terminal
            break
        if not part:
            break
        parts.append(part)
    os.close(controller)
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, words, b"".join(parts))
    return b"".join(parts).decode()


def draw_terminal(written: str) -> None:
    """Write the pictures of a terminal as SVG, without fonts from other hosts."""
    lines = [f"\x1b[1m$ understudy {' '.join(JOB)} {OUT}\x1b[0m", *screen_of(written)[:SHOWN_LINES]]
    for name, theme in THEMES.items():
        with Path(os.devnull).open("w") as nowhere:
            console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
            for line in lines:
                console.print(Text.from_ansi(line), no_wrap=True, crop=True)
            svg = console.export_svg(title="understudy job run", theme=theme, unique_id="job-run")
        (IMAGES / f"job-run-{name}.svg").write_text(_FONT.sub("", svg))


def photograph(browser: Browser, web: str, token: str, job_id: str) -> None:
    """Write the pictures of a job's page as PNG."""
    for theme in THEMES:
        context = browser.new_context(viewport=PAGE, color_scheme=theme)
        context.add_init_script(f"sessionStorage.setItem('understudy-token', '{token}')")
        page = context.new_page()
        page.goto(f"{web}/#/jobs/{job_id}")
        expect(page.locator("main:not([aria-busy])")).to_be_visible()
        expect(page.locator("main svg").first).to_be_visible()
        page.screenshot(path=IMAGES / f"page-{theme}.png")
        context.close()


def main() -> None:
    """Make all pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="understudy-pictures-") as scratch:
        directory = Path(scratch) / "cluster"
        (Path(scratch) / "config.yaml").write_text(f"cluster.runtime-dir: {directory}\n{SETTINGS}")
        os.environ["UNDERSTUDY_CONF_DIR"] = scratch
        understudy("start")
        try:
            out = str(Path(scratch) / OUT)
            draw_terminal((written := on_a_terminal(*JOB, out)).replace(out, OUT))
            job_id = re.findall(r"job ([0-9a-f]{32})", written)[0]
            (web,) = set(re.findall(r"http://[0-9.:]+", understudy("status")))
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
                photograph(browser, web, (directory / "rest-token").read_text().strip(), job_id)
                browser.close()
        finally:
            understudy("stop")


if __name__ == "__main__":
    main()
