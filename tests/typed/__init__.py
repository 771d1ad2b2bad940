"""What type checkers know of the public API: ``mypy`` (of ``make check``) fails where that is less."""
