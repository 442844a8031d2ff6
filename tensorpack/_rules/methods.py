"""The names of the methods that a payload gets, for the decorator and for checkers."""

__all__ = ["COURTESIES", "METHODS"]

METHODS = ("to_device", "record_stream", "payload_keys", "host_keys")
"""Every payload has these, so a class body that defines one is refused."""

COURTESIES = ("to", "pin_memory")
"""What other libraries call: left out where a class uses the name itself."""
