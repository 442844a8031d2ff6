"""What generated code calls while it runs: walk a value, build a new one.

In: a payload or any value. Out: its leaves in plan order, or a new object from them.
Values whose type is only known at run time are decided here, and mismatches raised.
Imports `errors`, `_rules`, `_leaves` and `_plan`; generated code gets `build.HELPERS`.
"""
