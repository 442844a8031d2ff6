"""Class -> plan: the validator.

In: a class that attrs, `dataclasses` or msgspec has made. Out: a `ClassPlan`, or one
error that lists every bad field. Decides at the definition what can be decided there.
Imports `errors`, `_rules` and `_leaves`.
"""
