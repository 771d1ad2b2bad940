"""High availability: leader election, leader retrieval and the stores of small handles, on Redis, or
in the memory of the master.

The only package that imports ``redis``. Shaped after Flink's ``HighAvailabilityServices``; see `runtime.ha.services`.
"""
