"""A distributed replacement for ``celery beat``."""
from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["Retry", "current", "every", "scheduled"]

# Loaded at first use: the version must be readable without Celery, and nothing here may need settings.
_HOMES = {
    "Retry": "chrono_beat.core.retry",
    "current": "chrono_beat.celery.context",
    "every": "chrono_beat.celery.decorators",
    "scheduled": "chrono_beat.celery.decorators",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
