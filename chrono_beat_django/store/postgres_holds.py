"""Holding back the retries of tenants that fail too often, on PostgreSQL."""
from __future__ import annotations

from chrono_beat.core.findings import RetryHold
from chrono_beat_django.store.postgres_edits import PostgresEdits
from chrono_beat_django.store.postgres_sql import us

RELEASE = """UPDATE chrono_tenant SET retries_paused_until = NULL WHERE retries_paused_until <= clock_timestamp()
    RETURNING slug"""

# now() and not clock_timestamp(): only what stands still during the statement can bound a range of an index. The time of
# the tenant's last change is set by a trigger at a hold, its end and every edit: from then on failures are counted anew.
HOLD = f"""UPDATE chrono_tenant t SET retries_paused_until = clock_timestamp() + make_interval(secs => %s) FROM (
    SELECT x.slug, c.failed, c.ended FROM chrono_tenant x CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE e.state <> 'succeeded') AS failed, count(*) AS ended FROM chrono_execution e
        WHERE e.tenant = x.slug AND e.state IN ('succeeded', 'failed', 'dead')
            AND e.finished_at > GREATEST(now() - make_interval(secs => %s), x.updated_at)
    ) c
    WHERE x.failure_threshold IS NOT NULL AND x.retries_paused_until IS NULL
        AND c.ended >= %s AND c.failed > 0 AND c.failed >= x.failure_threshold * c.ended
) f WHERE t.slug = f.slug AND t.retries_paused_until IS NULL
RETURNING t.slug, f.failed, f.ended, {us("t.retries_paused_until")}"""


class PostgresHolds(PostgresEdits):
    """The part of JobStore that holds retries back."""

    def hold_retries(self, window_us: int, minimum: int, hold_us: int) -> tuple[list[RetryHold], list[str]]:
        """See JobStore."""
        released = [row[0] for row in self._rows(RELEASE)]
        held = self._rows(HOLD, hold_us / 1_000_000, window_us / 1_000_000, minimum)
        return [RetryHold._make(row) for row in held], released
