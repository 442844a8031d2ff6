"""What `python -m tensorpack audit` reads: fields that hand-written methods forget.

Source text goes in, reports come out. Nothing that is audited is imported, and nothing
but the standard library is needed: neither torch nor attrs.

files -> modules (one summary a file, in processes) -> index (names across files)
-> classes (fields, order of bases) -> coverage (what a method does to each field)
-> rules -> reports.
"""
