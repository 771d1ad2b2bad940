"""Seeds of tests that are another one in each run."""

from __future__ import annotations

import os
import random
import sys


def printed_seed() -> int:
    """A random seed, which a failing test shows; the environment variable ``UNDERSTUDY_SEED`` sets it."""
    seed = int(os.environ.get("UNDERSTUDY_SEED", random.SystemRandom().randrange(1 << 32)))
    sys.stdout.write(f"UNDERSTUDY_SEED={seed}\n")
    return seed
