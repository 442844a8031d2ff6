"""Plan -> text of `leaves` and `rebuild` -> functions.

In: a `ClassPlan`. Out: the two generated functions and their source text.
Pure and deterministic: the same class gives the same text.
Imports `_rules`, `_leaves` and `_plan`.
"""
