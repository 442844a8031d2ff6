"""What a type means: markers, containers, nodes.

In: the annotation of a field, already looked up. Out: a node, or a refusal with its
remedies. Both readers of annotations use it: `_plan` at run time and `mypy_plugin`.
May be imported by every folder; imports only `errors`.
"""
