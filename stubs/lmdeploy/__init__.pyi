__version__: str
version_info: tuple[int, ...]
