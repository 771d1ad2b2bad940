"""How long tests wait."""

from __future__ import annotations

from actors.supervision import Backoff

PATIENCE_S = 600.0
"""Time limit in seconds of every wait for something that must happen.

Only a hang reaches it. A busy machine makes a test slow, never red, so no test asserts a shorter time than this one.
Where a test shows that a time-out is *not* waited for, it makes that time-out longer than this.
"""

LONGER_THAN_PATIENCE_S = 3600.0
"""A time-out in seconds that no test may wait for: whoever does is found out by `PATIENCE_S`."""

AT_ONCE = Backoff(0.001, 0.01)
"""In the place of `runtime.retry.SOON`: what fails is tried again with next to no pause."""
