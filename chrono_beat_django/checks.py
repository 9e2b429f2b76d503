"""What ``manage.py check`` says of this deployment: settings that cannot work, and those that will hurt later.

E001 a setting is unknown or impossible; E002 ``USE_TZ`` is off; E003 and E004 the numbers of partitions and lanes are
not those of the database (these two ask it, so they run with ``check --database default`` and before ``migrate``);
W001 an SQLite database that begins its transactions late.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DatabaseError, connections, router

from chrono_beat.core.config import find_problems
from chrono_beat.core.errors import MisconfiguredError
from chrono_beat_django import conf, models

TAG = "chrono_beat"


@register(TAG)
def check_settings(app_configs: Sequence[Any] | None = None, **_: object) -> list[CheckMessage]:
    """Report everything that is wrong with ``CHRONO_BEAT`` and with Django's own settings that it depends on."""
    found: list[CheckMessage] = [
        Error(f"{conf.SETTING}: {problem.field}: {problem.message}", id="chrono_beat.E001")
        for problem in find_problems(conf.raw())
    ]
    if not settings.USE_TZ:
        found.append(Error(
            "USE_TZ is False, so instants would be stored without their zone and run at other times than shown",
            hint="Set USE_TZ = True.",
            id="chrono_beat.E002",
        ))
    found.extend(_late_transactions())
    return found


def _late_transactions() -> Iterable[CheckMessage]:
    """Warn of SQLite databases of ours whose transactions begin as readers.

    Such a transaction fails with "database is locked" at its first write if another one wrote meanwhile, whatever the
    time-out: SQLite cannot let a reader of an old snapshot write. One that begins IMMEDIATE waits instead.
    """
    for alias in _aliases():
        database = settings.DATABASES.get(alias, {})
        if not str(database.get("ENGINE", "")).endswith("sqlite3"):
            continue
        if str(database.get("OPTIONS", {}).get("transaction_mode", "")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
            yield Warning(
                f'the SQLite database "{alias}" does not begin its transactions IMMEDIATE, so workers and dispatchers '
                "that write at the same time will fail with \"database is locked\"",
                hint=f'Set DATABASES["{alias}"]["OPTIONS"]["transaction_mode"] = "IMMEDIATE".',
                id="chrono_beat.W001",
            )


def _aliases() -> list[str]:
    """Return the aliases of the databases that our tables are written to."""
    return sorted({router.db_for_write(model) for model in (models.Tenant, models.Job, models.Execution)})


@register(Tags.database, TAG)
def check_layout(databases: Sequence[str] | None = None, **_: object) -> list[CheckMessage]:
    """Report where PARTITIONS or LANES are not what the database was migrated with.

    Both decide where a job is looked for; a process that counts otherwise would not find jobs, or find them twice.
    """
    try:
        config = conf.config()
    except MisconfiguredError:
        return []                                           # check_settings says it
    found: list[CheckMessage] = []
    for alias in sorted(set(databases or ()) & set(_aliases())):
        stored = _deployment(alias)
        if stored is None:
            continue
        for setting, wanted, fixed, number in (
            ("PARTITIONS", config.partitions, stored.partitions, 3), ("LANES", config.lanes, stored.lanes, 4),
        ):
            if fixed != wanted:
                found.append(Error(
                    f"{conf.SETTING}: {setting} is {wanted}, but the database was migrated with {fixed}",
                    hint=f"Set {setting} to {fixed} in every process; it is fixed by the first migrate.",
                    id=f"chrono_beat.E{number:03}",
                ))
    return found


def _deployment(alias: str) -> models.Deployment | None:
    """Return what the first migrate fixed; None before it, and where the database is away (others tell of that)."""
    try:
        if models.Deployment._meta.db_table not in connections[alias].introspection.table_names():
            return None
        return models.Deployment.objects.using(alias).first()
    except DatabaseError:
        return None
