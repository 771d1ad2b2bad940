"""Seeds of what tests do at random: the same ones in each run, and random ones in the long forms."""

from __future__ import annotations

import os
import random
import sys

SEED_VARIABLE = "UNDERSTUDY_SEED"


def printed_seed() -> int:
    """A random seed, which a failing test shows; an environment variable sets it."""
    seed = int(os.environ.get(SEED_VARIABLE, random.SystemRandom().randrange(1 << 32)))
    sys.stdout.write(f"{SEED_VARIABLE}={seed}\n")
    return seed
