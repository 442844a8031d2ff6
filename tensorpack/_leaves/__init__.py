"""One leaf: a tensor, or a value with lifetime support.

In: leaves, in a list. Out: moved, pinned, cloned or recorded ones, each object once.
Knows streams, events and adapters; knows no plans and no payloads.
Imports `errors` and `_rules`.
"""
