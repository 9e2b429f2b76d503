"""Triggers that notice edits which go around the store: SQL by hand, ``queryset.update()``, a load of rows.

An edit through the store raises ``version`` itself, and the triggers leave it alone. Where the version stays and
something changed that a run depends on, the trigger raises it, so that nothing claimed under the old plan is
published any more, and:

- a paused job loses its next run;
- where the schedule changed, or the job was quarantined, ``replan`` is set and the due index shows the job at once: the
  dispatcher plans it from now;
- otherwise the next run stays: what was claimed and has not begun is taken over by the scan of execution rows, with the
  new content (protocol rule 7).

What plans anew sets ``plan_version``: rows of an older plan are carried over by nobody. A version never goes down: a whole
row that somebody saves as it was before another's edit counts as an edit, or the void of that one would stand against it.

A job that comes without a next run and is not paused is planned likewise. A tenant's limits are dated by the database's
clock.

Whoever raises a version, or deletes a job, the store or somebody else, leaves a row in ``chrono_pending_void`` in the
same transaction: from there dispatchers tell Redis within a second what the caller could not, or did not know of, and
the sweep knows where to look for rows of an older plan (protocol rule 8). A finished job without open rows leaves none.

Columns that only dispatchers write are watched by none, so a claim pays nothing.

They are installed after every ``migrate`` and not by a migration: Django rebuilds a table on SQLite to alter it, and
its triggers go with the old one.
"""
from __future__ import annotations

import hashlib

from django.db.backends.base.base import BaseDatabaseWrapper

from chrono_beat.core.records import GONE_VERSION

PLAN = ("schedule_kind", "expression", "timezone", "start_at", "end_at", "anchor_at", "max_occurrences",
        "spread_seconds", "paused")
CONTENT = ("tenant", "name", "target_kind", "task", "args", "kwargs", "headers", "pool", "priority",
           "soft_limit_seconds", "max_duration_seconds", "idempotent", "max_attempts", "retry_base_seconds",
           "retry_factor", "retry_maximum_seconds", "retry_jitter", "concurrency", "exclusion_group",
           "expires_after_seconds", "misfire", "misfire_cap", "grace_seconds", "key_scope", "url", "queue",
           "timeout_seconds")
LIMITS = ("weight", "max_running", "paused", "failure_threshold", "retries_paused_until")

_NAMES = ("chrono_job_edited", "chrono_job_added", "chrono_tenant_changed", "chrono_tenant_moved", "chrono_job_raised",
          "chrono_job_deleted")
_UNPLANNED = "NEW.next_run_at IS NULL AND NOT NEW.paused AND NEW.finished_at IS NULL AND NEW.quarantined_reason = ''"

_TO_VOID = 'INSERT INTO chrono_pending_void (job_id, tenant, "partition", version)'
_VOID_AGAIN = """ON CONFLICT (job_id) DO UPDATE SET version = excluded.version, told = false,
    created_at = excluded.created_at WHERE excluded.version > chrono_pending_void.version"""
_MAY_HAVE_ROWS = """({job}.finished_at IS NULL OR EXISTS (SELECT 1 FROM chrono_execution e
    WHERE e.job_id = {job}.id AND e.state IN ('scheduled', 'queued', 'running')))"""
_GONE_MAY_HAVE_ROWS = _MAY_HAVE_ROWS.format(job="OLD")
# To move a tenant to another pool is an edit of all its jobs that have none of their own, and carried over like one.
_MOVED = f"""UPDATE chrono_job SET version = version + 1 WHERE id IN (SELECT j.id FROM chrono_job j
        WHERE j.tenant = NEW.slug AND j.pool = '' AND {_MAY_HAVE_ROWS.format(job="j")}"""


def _row(of: str, columns: tuple[str, ...]) -> str:
    return f"ROW({', '.join(f'{of}.{column}' for column in columns)})"


_POSTGRES = f"""
CREATE OR REPLACE FUNCTION chrono_job_edited() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    NEW.version := OLD.version + 1;
    NEW.plan_version := GREATEST(OLD.plan_version, NEW.plan_version);
    IF NEW.quarantined_reason <> '' OR {_row('OLD', PLAN)} IS DISTINCT FROM {_row('NEW', PLAN)} THEN
        NEW.plan_version := NEW.version;
        NEW.paused_at := CASE WHEN NEW.paused THEN COALESCE(OLD.paused_at, clock_timestamp()) END;
    END IF;
    {_TO_VOID} VALUES (NEW.id, NEW.tenant, NEW.partition, NEW.version) {_VOID_AGAIN};
    IF NEW.paused THEN
        NEW.next_run_at := NULL; NEW.replan := false;
    ELSIF NEW.finished_at IS NOT NULL THEN
        NULL;
    ELSIF NEW.quarantined_reason <> '' OR {_row('OLD', PLAN)} IS DISTINCT FROM {_row('NEW', PLAN)} THEN
        NEW.next_run_at := clock_timestamp(); NEW.replan := true; NEW.quarantined_reason := '';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER chrono_job_edited BEFORE UPDATE OF {', '.join(PLAN + CONTENT)} ON chrono_job FOR EACH ROW
    WHEN (OLD.version > NEW.version
        OR OLD.version = NEW.version AND {_row('OLD', PLAN + CONTENT)} IS DISTINCT FROM {_row('NEW', PLAN + CONTENT)})
    EXECUTE FUNCTION chrono_job_edited();
CREATE OR REPLACE FUNCTION chrono_job_raised() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    {_TO_VOID} VALUES (NEW.id, NEW.tenant, NEW.partition, NEW.version) {_VOID_AGAIN};
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER chrono_job_raised AFTER UPDATE OF version ON chrono_job FOR EACH ROW
    WHEN (OLD.version < NEW.version) EXECUTE FUNCTION chrono_job_raised();
CREATE OR REPLACE FUNCTION chrono_job_deleted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    {_TO_VOID} SELECT OLD.id, OLD.tenant, OLD.partition, {GONE_VERSION} WHERE {_GONE_MAY_HAVE_ROWS} {_VOID_AGAIN};
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER chrono_job_deleted AFTER DELETE ON chrono_job FOR EACH ROW
    EXECUTE FUNCTION chrono_job_deleted();
CREATE OR REPLACE FUNCTION chrono_job_added() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    NEW.next_run_at := clock_timestamp(); NEW.replan := true;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER chrono_job_added BEFORE INSERT ON chrono_job FOR EACH ROW
    WHEN ({_UNPLANNED}) EXECUTE FUNCTION chrono_job_added();
CREATE OR REPLACE FUNCTION chrono_tenant_changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    NEW.updated_at := clock_timestamp();
    NEW.paused_at := CASE WHEN NEW.paused THEN COALESCE(NEW.paused_at, clock_timestamp()) END;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER chrono_tenant_changed BEFORE INSERT OR UPDATE OF {', '.join(LIMITS)} ON chrono_tenant
    FOR EACH ROW EXECUTE FUNCTION chrono_tenant_changed();
CREATE OR REPLACE FUNCTION chrono_tenant_moved() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    {_MOVED} ORDER BY j.id FOR UPDATE);
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER chrono_tenant_moved AFTER UPDATE OF pool ON chrono_tenant FOR EACH ROW
    WHEN (OLD.pool <> NEW.pool) EXECUTE FUNCTION chrono_tenant_moved();
"""
_INSTALLED = """SELECT count(*) = 6 AND max(obj_description(tgfoid, 'pg_proc')) FILTER (WHERE tgname =
'chrono_job_edited') = %s
FROM pg_trigger WHERE tgname IN ('chrono_job_edited', 'chrono_job_added', 'chrono_tenant_changed', 'chrono_tenant_moved',
    'chrono_job_raised', 'chrono_job_deleted')
    AND tgrelid IN ('chrono_job'::regclass, 'chrono_tenant'::regclass)"""

_NOW = "STRFTIME('%Y-%m-%d %H:%M:%f', 'now')"


def _changed(columns: tuple[str, ...]) -> str:
    return "(" + " OR ".join(f'OLD."{column}" IS NOT NEW."{column}"' for column in columns) + ")"


_REPLANNED = f"(NEW.quarantined_reason <> '' OR {_changed(PLAN)})"
_SQLITE = (
    f"""CREATE TRIGGER chrono_job_edited AFTER UPDATE OF {', '.join(PLAN + CONTENT)} ON chrono_job FOR EACH ROW
WHEN NEW.version < OLD.version OR NEW.version = OLD.version AND {_changed(PLAN + CONTENT)} BEGIN
    UPDATE chrono_job SET version = OLD.version + 1,
        plan_version = CASE WHEN {_REPLANNED} THEN OLD.version + 1 ELSE MAX(plan_version, OLD.plan_version) END,
        paused_at = CASE WHEN NOT NEW.paused THEN NULL ELSE COALESCE(paused_at, {_NOW}) END,
        next_run_at = CASE WHEN NEW.paused THEN NULL WHEN NEW.finished_at IS NOT NULL THEN next_run_at
            WHEN {_REPLANNED} THEN {_NOW} ELSE next_run_at END,
        replan = CASE WHEN NEW.paused THEN 0 WHEN NEW.finished_at IS NOT NULL THEN replan
            WHEN {_REPLANNED} THEN 1 ELSE replan END,
        quarantined_reason = CASE WHEN NEW.paused OR NEW.finished_at IS NOT NULL THEN quarantined_reason
            WHEN {_REPLANNED} THEN '' ELSE quarantined_reason END
    WHERE id = NEW.id;
END""",
    f"""CREATE TRIGGER chrono_job_added AFTER INSERT ON chrono_job FOR EACH ROW WHEN {_UNPLANNED} BEGIN
    UPDATE chrono_job SET next_run_at = {_NOW}, replan = 1 WHERE id = NEW.id;
END""",
    f"""CREATE TRIGGER chrono_tenant_changed AFTER UPDATE OF {', '.join(LIMITS)} ON chrono_tenant FOR EACH ROW
WHEN {_changed(LIMITS)} BEGIN
    UPDATE chrono_tenant SET updated_at = {_NOW},
        paused_at = CASE WHEN NEW.paused THEN COALESCE(NEW.paused_at, {_NOW}) END WHERE slug = NEW.slug;
END""",
    f"""CREATE TRIGGER chrono_tenant_moved AFTER UPDATE OF pool ON chrono_tenant FOR EACH ROW
WHEN OLD.pool IS NOT NEW.pool BEGIN
    {_MOVED});
END""",
    f"""CREATE TRIGGER chrono_job_raised AFTER UPDATE OF version ON chrono_job FOR EACH ROW
WHEN OLD.version < NEW.version BEGIN
    {_TO_VOID} VALUES (NEW.id, NEW.tenant, NEW."partition", NEW.version) {_VOID_AGAIN};
END""",
    f"""CREATE TRIGGER chrono_job_deleted AFTER DELETE ON chrono_job FOR EACH ROW WHEN {_GONE_MAY_HAVE_ROWS} BEGIN
    {_TO_VOID} VALUES (OLD.id, OLD.tenant, OLD."partition", {GONE_VERSION}) {_VOID_AGAIN};
END""",
)


def install(connection: BaseDatabaseWrapper) -> None:
    """Create the triggers of this release, in place of older ones; nothing is touched where they are there already."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            release = hashlib.sha256(_POSTGRES.encode()).hexdigest()
            cursor.execute(_INSTALLED, [release])
            if not cursor.fetchone()[0]:
                cursor.execute(f"{_POSTGRES} COMMENT ON FUNCTION chrono_job_edited() IS '{release}';")
        elif connection.vendor == "sqlite":
            for name, statement in zip(_NAMES, _SQLITE, strict=True):
                cursor.execute(f"DROP TRIGGER IF EXISTS {name}")
                cursor.execute(statement)


def remove(connection: BaseDatabaseWrapper) -> None:
    """Take the triggers away on SQLite, which refuses to change a table while a trigger names what is changed."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            for name in _NAMES:
                cursor.execute(f"DROP TRIGGER IF EXISTS {name}")
