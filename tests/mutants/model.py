"""What a planted fault is, and where it applies. Pure but for reading the product's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class NotApplicable(Exception):
    """A planted fault has lost its place: the text that it replaces is not there exactly once."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One guard of the product, taken out.

    Args:
        name: unique, in words joined by dashes; what the reports call it.
        guard: what the guard promises, in one sentence.
        file: the product's file, from the root of the project.
        old: text that occurs exactly once in the file, the guard in it.
        new: what takes its place; the file compiles with it.
        tests: tests that fail with it, named from ``tests/`` (``unit/test_x.py::test_y``). Every one has to fail; one
            of several cases fails where one of its cases does.
        long: whether the tests start Spark or clusters, so that it belongs to the long form.
    """

    name: str
    guard: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    long: bool = False

    @property
    def area(self) -> str:
        """The package: ``actors``, ``blob``, ``conf``, ``runtime`` or a package of it such as ``runtime/ha``."""
        parts = self.file.split("/")
        return "/".join(parts[:2]) if parts[0] == "runtime" and len(parts) > 2 else parts[0]

    def is_of(self, wanted: str) -> bool:
        """Whether *wanted* is its name, its area, or what its area lies in."""
        return wanted == self.name or f"{self.area}/".startswith(f"{wanted}/")

    def text(self, root: Path) -> str:
        """Return the file's content with the fault in it.

        Args:
            root: the tree that has the file.

        Raises:
            NotApplicable: there is no such file, `old` is not in it exactly once, or the result does not compile.
        """
        try:
            content = (root / self.file).read_text()
        except FileNotFoundError:
            raise NotApplicable(f"there is no file {self.file}: mend or remove the fault {self.name}") from None
        count = content.count(self.old)
        if count != 1:
            raise NotApplicable(
                f"its text is {count} times in {self.file}, not once: mend or remove the fault {self.name}"
            )
        changed = content.replace(self.old, self.new)
        if self.file.endswith(".py"):
            try:
                compile(changed, self.file, "exec")
            except SyntaxError as error:
                raise NotApplicable(f"{self.file} does not compile with the fault {self.name}: {error}") from None
        return changed
