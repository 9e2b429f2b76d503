"""The settings of this deployment: Django's ``CHRONO_BEAT``, read at first use and kept until a setting changes."""
from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed

from chrono_beat.core.config import Config, load

SETTING = "CHRONO_BEAT"


def raw() -> Mapping[str, Any]:
    """Return the mapping as the project wrote it; an empty one where there is none."""
    return getattr(settings, SETTING, {})


@functools.cache
def config() -> Config:
    """Return the settings with their defaults.

    Raises:
        MisconfiguredError: they can't work; the message lists every problem.
    """
    return load(raw())


def _forget(*, setting: str, **_: object) -> None:
    if setting == SETTING:
        config.cache_clear()


setting_changed.connect(_forget, dispatch_uid="chrono_beat_django.conf")
