"""Where a beat of another scheduler notes what it sends; see :mod:`chrono_beat.celery.observer`."""
from __future__ import annotations

import socket
from typing import Any

from django.db import connections, transaction

from chrono_beat.core import ids
from chrono_beat_django import wiring
from chrono_beat_django.models import BeatFire, BeatWatch
from chrono_beat_django.store import definitions as store

LONGEST = 255


def now_us() -> int:
    """Return the database's clock, in microseconds since the epoch."""
    return wiring.now_us()


def note(noted: Any) -> int:
    """Write fires, and up to when everything is known, in one transaction.

    Args:
        noted: a :class:`chrono_beat.celery.observer.Noted`.

    Returns:
        The number of the watch.
    """
    try:
        with transaction.atomic(using=store.alias()):
            BeatFire.objects.using(store.alias()).bulk_create([
                BeatFire(origin=fire.origin[:LONGEST], name=fire.name[:LONGEST], task=fire.task[:LONGEST],
                         sent_at=ids.from_us(fire.at_us)) for fire in noted.fires])
            watches = BeatWatch.objects.using(store.alias())
            until = ids.from_us(noted.until_us)
            if noted.watch is not None and watches.filter(id=noted.watch).update(seen_until=until, ended=noted.ended):
                return noted.watch
            return watches.create(
                scheduler=noted.scheduler[:LONGEST], host=socket.gethostname()[:LONGEST], began_at=ids.from_us(noted.began_us),
                seen_until=until, ended=noted.ended).id
    except Exception:
        connections[store.alias()].close()          # a connection that has failed is not used again
        raise
