"""The Django application: its label, and what every ``migrate`` sees to."""
from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_migrate


def after_migrate(sender: AppConfig, using: str, **_: Any) -> None:
    """Write the rows and triggers that the store rests on, where they are missing."""
    from chrono_beat_django import conf
    from chrono_beat_django.store import layout

    config = conf.config()
    layout.prepare(using, config.partitions, config.lanes)


def before_migrate(sender: AppConfig, using: str, plan: Any = (), **_: Any) -> None:
    """Take the triggers away where tables are about to change; afterwards they are put back."""
    if plan:
        from django.db import connections

        from chrono_beat_django.store import triggers

        triggers.remove(connections[using])


class ChronoBeatConfig(AppConfig):
    """chrono_beat in a Django project."""

    name = "chrono_beat_django"
    label = "chrono_beat"
    verbose_name = "chrono_beat"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks and listen for this application's migrations."""
        from chrono_beat_django import checks  # noqa: F401 - importing registers them

        pre_migrate.connect(before_migrate, sender=self)
        post_migrate.connect(after_migrate, sender=self)
