"""What commands print with ``--json``, held against its published schema."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import jsonschema

from runtime.cluster.document_reference import schema_of
from runtime.cluster.documents import DOCUMENTS


@functools.cache
def _validator(command: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema_of(command, strict=True))


def parsed(arguments: Sequence[str], output: str) -> Any:
    """Return what a command has printed; fails where its schema does not allow it.

    Args:
        arguments: of the command; its words come first.
        output: all that it printed to standard output.
    """
    command = next(words for count in (2, 1) if (words := " ".join(arguments[:count])) in DOCUMENTS)
    value = json.loads(output)
    _validator(command).validate(value)
    return value
