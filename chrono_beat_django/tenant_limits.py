"""Create a tenant, and change its share and limits."""
from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction

from chrono_beat.core import field_checks as checks
from chrono_beat.core import ids, targets
from chrono_beat.core.errors import Conflict, InvalidInput, NotYetVoidedWarning, Problem, QueueUnavailable
from chrono_beat.core.field_checks import Number
from chrono_beat.core.records import TenantLimits, Void
from chrono_beat_django import control, wiring
from chrono_beat_django.models import PendingVoid, Tenant
from chrono_beat_django.store import definitions as store

NUMBERS = {
    "weight": Number(1, 1_000, "", whole=True, optional=False),
    "max_running": Number(1, 1_000_000, "", whole=True, optional=False),
    "max_jobs": Number(0, 1_000_000_000, "", whole=True, optional=False),
    "create_rate": Number(0.001, 1_000_000, "", optional=False),
    "create_burst": Number(1, 1_000_000, "", whole=True, optional=False),
    "spread_seconds": Number(0, 86_400, "seconds", whole=True, optional=False),
    "failure_threshold": Number(0, 1, ""),
    "lateness_objective_seconds": Number(0.001, 86_400, "seconds"),
    "retention_days": Number(1, 36_500, "days", whole=True),
}
"""What the numbers of a tenant may be; the admin's form has the same."""

_TEXTS = ("name", "pool")
_TOLD = frozenset({"weight", "max_running"})
MAX_NAME_CHARACTERS = 255

BATCH = 200
"""Voids of a move that are read and told at once."""


def create(slug: str, **values: Any) -> Tenant:
    """Create a tenant.

    Args:
        slug: 1 to 63 letters, digits, - and _; it stays as it is.
        values: any of name, weight, max_running, pool, max_jobs, create_rate, create_burst, spread_seconds,
            failure_threshold, lateness_objective_seconds, retention_days.

    Raises:
        InvalidInput: with everything that is wrong.
        Conflict: there is one of that slug.
    """
    slug = str(slug).strip()
    problems = [Problem("slug", wrong)] if (wrong := checks.wrong_tenant(slug)) else []
    valid = _checked(values, problems)
    try:
        with transaction.atomic(using=store.alias()):
            made = Tenant.objects.using(store.alias()).create(slug=slug, **valid)
            transaction.on_commit(lambda: _tell(slug), using=store.alias())
    except IntegrityError as error:
        if not Tenant.objects.using(store.alias()).filter(slug=slug).exists():
            raise
        raise Conflict(f"there is a tenant {slug} already; choose another slug") from error
    return made


@store.repeated_after_deadlock
def update(tenant: Tenant | str, **changes: Any) -> Tenant:
    """Change a tenant's share and limits; Redis is told of the share when that has committed.

    Args:
        changes: as in :func:`create`; another pool moves what waits there, see `tenants.move`.

    Raises:
        UnknownTenant: there is none.
        InvalidInput: with everything that is wrong.
    """
    slug = tenant.slug if isinstance(tenant, Tenant) else str(tenant)
    valid = _checked(changes, [])
    with transaction.atomic(using=store.alias()):
        found = store.lock_tenant(slug)
        differing = {name: value for name, value in valid.items() if getattr(found, name) != value}
        if differing:
            Tenant.objects.using(store.alias()).filter(slug=slug).update(**differing)
            found.refresh_from_db()
        if differing.keys() & _TOLD:
            transaction.on_commit(lambda: _tell(slug), using=store.alias())
        if "pool" in differing:
            transaction.on_commit(lambda: _tell_moved(slug), using=store.alias())
    return found


def tell_limits(tenant: Tenant, changed_us: int | None = None) -> bool:
    """Tell Redis a tenant's share; where it is away the caller is warned, and a dispatcher tells it.

    Returns:
        Whether it was told.
    """
    at_us = ids.to_us(tenant.updated_at) if changed_us is None else changed_us
    limits = TenantLimits(tenant.slug, tenant.weight, tenant.max_running, tenant.paused, at_us)
    try:
        wiring.queue().set_tenants(lane_of(tenant.slug), [limits])
    except QueueUnavailable as error:
        warnings.warn(
            f"the change of tenant {tenant.slug} is saved, but Redis could not be told ({error}): a dispatcher will, "
            "within a second of its return",
            NotYetVoidedWarning,
            stacklevel=2,
        )
        return False
    return True


def remove(tenant: Tenant) -> None:
    """Delete the row of a tenant without jobs, in the transaction that has locked it.

    Redis gets the default limits first. Nobody would tell them once the row is gone, and a pause would hold the tenant's
    plain tasks back for as long as Redis remembers it.

    Raises:
        QueueUnavailable: Redis could not be told, and the row stays.
    """
    defaults = Tenant(slug=tenant.slug)
    limits = TenantLimits(
        tenant.slug, defaults.weight, defaults.max_running, defaults.paused, ids.to_us(tenant.updated_at) + 1)
    wiring.queue().set_tenants(lane_of(tenant.slug), [limits])
    tenant.delete()


def lane_of(slug: str) -> int:
    """Return the lane of a tenant."""
    return ids.lane_of(slug, wiring.config().lanes)


def _tell(slug: str) -> None:
    found = Tenant.objects.using(store.alias()).filter(slug=slug).first()
    if found is not None:
        tell_limits(found)


def _checked(values: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return the values in their stored form; *problems* are what else is wrong."""
    valid: dict[str, Any] = {}
    for name, value in values.items():
        if name in NUMBERS:
            valid[name], wrong = checks.number(value, NUMBERS[name])
        elif name in _TEXTS:
            valid[name], wrong = _text(name, value)
        else:
            near = difflib.get_close_matches(name, (*NUMBERS, *_TEXTS), n=1)
            wrong = "a tenant has no such field" + (f"; did you mean {near[0]}?" if near else "")
        if wrong:
            problems.append(Problem(name, wrong))
    if problems:
        raise InvalidInput(*problems)
    return valid


def _text(name: str, value: Any) -> tuple[str, str]:
    if not isinstance(value, str):
        return "", f"must be a text, not {checks.kind_of(value)}"
    text = value.strip()
    wrong = checks.unstorable(text)
    if not wrong and name == "pool":
        wrong = targets.wrong_tenant_pool(text, wiring.config())
    if not wrong and name == "name" and len(text) > MAX_NAME_CHARACTERS:
        wrong = f"may have {MAX_NAME_CHARACTERS} characters; this has {len(text)}"
    return text, wrong or ""


def _tell_moved(slug: str) -> None:
    """Tell Redis what a move to another pool has made void."""
    pending = PendingVoid.objects.using(store.alias()).filter(tenant=slug, told=False).order_by("job_id")
    rows = list(pending[:BATCH])
    while rows and control.say([Void(str(row.job_id), row.tenant, row.version) for row in rows]):
        rows = list(pending.filter(job_id__gt=rows[-1].job_id)[:BATCH])      # a dispatcher tells what is left out
    wiring.wake_dispatchers()
