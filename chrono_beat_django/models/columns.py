"""Kinds of columns that the models share."""
from __future__ import annotations

from typing import Any

from django.db import models

from chrono_beat.core import ids

FIRST_INSTANT = ids.from_us(0)
END_OF_TIME = ids.from_us(253_370_764_800 * 1_000_000)      # 9999-01-01: before that every database and Python agree


def both(value: Any) -> dict[str, Any]:
    """Give a column the same default in Python and in the database."""
    return {"default": value, "db_default": value}


def choices(words: tuple[str, ...]) -> list[tuple[str, str]]:
    """Offer words as they are."""
    return [(word, word) for word in words]


def instant(**options: Any) -> models.DateTimeField[Any, Any]:
    """Build a column for an instant that may be empty."""
    return models.DateTimeField(null=True, blank=True, **options)
