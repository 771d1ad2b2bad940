"""A program of several jobs: it finds the number below a limit with the most Collatz steps to 1, one range per job.

    understudy job run --target application examples/application.py 20000

Started with plain Python, it runs its jobs in the session cluster.
"""

from __future__ import annotations

import sys

from runtime.notebook import connect


def steps(number):
    """Return the number of Collatz steps to 1: halve an even number, else take three times the number plus one."""
    count = 0
    while number != 1:
        number, count = (number // 2 if number % 2 == 0 else 3 * number + 1), count + 1
    return count


def longest(spark, first, last):
    """Return the steps and the number with the most steps, from *first* to before *last*."""
    return spark.sparkContext.range(first, last).map(lambda number: (steps(number), number)).max()


def main(limit):
    """Search ever longer ranges, each as a job."""
    cluster, first, last, best = connect(), 1, 100, (0, 1)
    while first < limit:
        job = cluster.options(name=f"below-{min(last, limit)}").submit(longest, first, min(last, limit))
        best = max(best, job.result())
        print(f"below {min(last, limit):,}: {best[1]:,} takes {best[0]} steps")
        first, last = last, last * 10


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
