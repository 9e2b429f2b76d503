"""A distributed replacement for ``celery beat``."""

__version__ = "0.1.0"
