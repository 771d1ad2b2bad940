"""Planted faults: each takes one guard out of the product, and names the tests that have to fail then.

`python -m tests.mutants` applies them one at a time in a copy of the tree, and reports each that survives.
"""
