"""A program of several jobs: which number below a limit takes the most steps to come to 1 (Collatz), a range a job.

    python -m runtime.cluster job run --target application examples/application.py -- 20000

Started with plain Python, it runs its jobs in the session cluster.
"""

from __future__ import annotations

import sys

from runtime.notebook import connect


def steps(number):
    """Halve what is even, else take three times it and one more, until it is 1."""
    count = 0
    while number != 1:
        number, count = (number // 2 if number % 2 == 0 else 3 * number + 1), count + 1
    return count


def longest(spark, first, last):
    """The number from *first* to before *last* that takes the most steps, after how many these are."""
    return spark.sparkContext.range(first, last).map(lambda number: (steps(number), number)).max()


def main(limit):
    """Look at ever longer ranges; each is a job."""
    cluster, first, last, best = connect(), 1, 100, (0, 1)
    while first < limit:
        job = cluster.submit(longest, first=first, last=min(last, limit), name=f"below-{min(last, limit)}")
        best = max(best, job.result())
        print(f"below {min(last, limit):,}: {best[1]:,} takes {best[0]} steps")
        first, last = last, last * 10


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
