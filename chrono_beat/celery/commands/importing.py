"""``chrono import``: take over what another scheduler has."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from celery.beat import Scheduler
from celery.exceptions import ImproperlyConfigured

from chrono_beat.celery.commands import progress
from chrono_beat.celery.commands.editing import unknown_task
from chrono_beat.celery.commands.options import machine_option, tenant_option
from chrono_beat.celery.commands.output import ACTOR, TROUBLE, as_json, command, root
from chrono_beat.celery.commands.shown import tenant_of
from chrono_beat.core import ids, imports, imports_redbeat
from chrono_beat.core.errors import InvalidInput, Problem

SOURCES = ("beat-schedule", "django-celery-beat", "redbeat", "crontab")


@click.command("import")
@click.argument("source", type=click.Choice(SOURCES))
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--apply/--dry-run", default=False, help="Write the jobs; by default they are only listed.")
@tenant_option
@click.option("--tenant-of", multiple=True, metavar="TASK=SLUG", help="Another tenant for the entries of a task.")
@click.option("--pool", "pools", multiple=True, metavar="QUEUE=POOL", help="Which pool takes the place of a queue.")
@click.option("--paused", is_flag=True, help="Create the jobs paused.")
@click.option("--shadow", is_flag=True, help="Create jobs that fire without sending anything, beside the old scheduler.")
@click.option("--concurrency", default="forbid", show_default=True, type=click.Choice(["forbid", "allow", "replace"]),
              help="Of created jobs; Celery starts a run also beside its predecessor: allow.")
@click.option("--prune", type=click.Choice(["pause", "delete"]), help="What to do with jobs whose entry is gone.")
@click.option("--prune-all", is_flag=True, help="Prune also where the source is empty or more than half would go.")
@click.option("--timezone", default=None, help="IANA zone where the source names none; default: the Celery app's.")
@click.option("--task", default=None, help="crontab: the task that runs a command.")
@click.option("--name", default=None, help="crontab: what it is found again by; default: the full path of the file.")
@click.option("--system", is_flag=True, help="crontab: a user stands before each command, as in /etc/crontab.")
@machine_option
@click.pass_context
@command
def importing(context: click.Context, source: str, apply: bool, machine: bool, tenant: str | None, **given: Any) -> None:
    """Take over what another scheduler has, or a crontab.

    SOURCE is beat_schedule, the tables of django-celery-beat, the keys of redbeat, or crontab with a FILE. Nothing is
    written without --apply. A repeated import creates nothing twice and brings changes along. Exit status 1 where an
    entry could not be taken over; the others are.
    """
    composition = root(context)
    prefix, entries = read(context, composition, source, given)
    entries = [*entries]                # known before the first is written, so that the bar has an end
    with progress.bar("import", machine=machine, total=len(entries)) as went:
        lines = composition.importing().bring_in(
            (_with_unknown(context.obj.app, entry) for entry in entries), prefix=prefix,
            tenant=tenant_of(context, tenant),
            tenants=_pairs(given["tenant_of"], "tenant_of"), pools=_pairs(given["pools"], "pool"), paused=given["paused"],
            shadow=given["shadow"], concurrency=given["concurrency"], prune=given["prune"], prune_all=given["prune_all"],
            dry_run=not apply, actor=ACTOR, progress=lambda line: went())
    if machine:
        click.echo(as_json([line._asdict() for line in lines]))
    else:
        for line in lines:
            click.echo(f"{line.action.ljust(10)} {line.job}  {line.schedule}".rstrip())
            for message in line.messages:
                click.echo(f"{' ' * 11}{message}")
        counts = {action: sum(line.action == action for line in lines) for action in dict.fromkeys(x.action for x in lines)}
        summary = ", ".join(f"{count:,} {action}" for action, count in counts.items()) or "nothing found"
        click.echo(summary if apply else f"{summary}. Nothing was written; --apply does.")
    if any(line.action == "refused" for line in lines):
        raise click.exceptions.Exit(TROUBLE)


def read(context: click.Context, composition: Any, source: str, given: dict[str, Any]) -> tuple[str, Any]:
    """Return how the origins of a source begin, and its entries.

    Args:
        given: the options of the import that say how it is read.

    Raises:
        InvalidInput: it cannot be read.
    """
    app = context.obj.app
    if source == "crontab":
        if given["file"] is None or given["task"] is None:
            raise InvalidInput(Problem("crontab", "give the file, and --task with the task that runs a command"))
        try:
            text = given["file"].read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(Problem("file", f"cannot be read: {error}")) from error
        name = given["name"] or str(given["file"].resolve())
        return f"crontab:{name}:", imports.from_crontab(
            text, source=name, task=given["task"], timezone=given["timezone"] or app_zone(app), system=given["system"])
    zone = given["timezone"] or app_zone(app)
    if source == "beat-schedule":
        return "beat_schedule:", imports.from_beat_schedule(beat_entries(app), zone)
    if source == "redbeat":
        return imports_redbeat.ORIGIN, imports_redbeat.from_redbeat(_redbeat_hashes(app), zone)
    tables = composition.importing().import_tables
    return tables.ORIGIN, tables.read(zone, ids.from_us(composition.now_us()))


def _with_unknown(app: Any, entry: imports.Entry) -> imports.Entry:
    """Warn of a task that this app does not know: nobody would run it where no other one does."""
    unknown = unknown_task(app, entry.definition.task) if entry.definition else ""
    return replace(entry, warnings=(*entry.warnings, unknown)) if unknown else entry


def _redbeat_hashes(app: Any) -> list[tuple[str, dict[str, str]]]:
    """Return the entries of redbeat by name: all at once, so that what Redis fails at is not taken for removed."""
    import redis

    # As redbeat looks: its names may be in capitals, also where Celery's are not.
    prefix, url = (app.conf.first(name, name.upper()) for name in ("redbeat_key_prefix", "redbeat_redis_url"))
    prefix, url = prefix or "redbeat:", url or app.conf.broker_url
    if not str(url).startswith(("redis://", "rediss://", "unix://")):
        raise InvalidInput(Problem("redbeat_redis_url", "must be the URL of the Redis that redbeat uses: redis://…"))
    try:
        with redis.Redis.from_url(url, decode_responses=True) as client:
            names = sorted(set(client.scan_iter(f"{prefix}*", count=1_000, _type="hash")))
            return [(key.removeprefix(prefix), client.hgetall(key)) for key in names if client.hexists(key, "definition")]
    except redis.RedisError as error:
        raise InvalidInput(Problem("redbeat_redis_url", f"the Redis of redbeat cannot be read: {error}")) from error


def beat_entries(app: Any) -> dict[str, Any]:
    """Return what Celery's beat would fire: ``beat_schedule`` and the entry that Celery adds for results that expire.

    Raises:
        InvalidInput: the result backend of the app cannot be asked whether results expire.
    """
    app.finalize()                          # what listens to this may add entries, as before beat starts
    entries = {str(name): item for name, item in (app.conf.beat_schedule or {}).items()}
    beat = Scheduler(app, lazy=True)
    try:
        beat.install_default_entries(entries)
    except (ImportError, ImproperlyConfigured) as error:
        raise InvalidInput(Problem("result_backend", f"cannot be used: {error}")) from error
    own = {name: {"task": item.task, "schedule": item.schedule, "options": item.options}
           for name, item in beat.schedule.items()}
    return entries | own


def app_zone(app: Any) -> str:
    """Return the zone that Celery reads crontabs in: CELERY_TIMEZONE, else UTC where CELERY_ENABLE_UTC holds."""
    zone = getattr(app.timezone, "key", None) or str(app.timezone)
    if zone.upper() == "UTC":
        return "UTC"
    if getattr(app.timezone, "key", None) is None and getattr(app.timezone, "zone", None) is None:
        raise InvalidInput(Problem("timezone", "Celery uses this host's zone; name it by --timezone Europe/London"))
    return zone


def _pairs(texts: tuple[str, ...], field: str) -> dict[str, str]:
    wrong = [text for text in texts if not all(text.partition("=")[::2])]
    if wrong:
        raise InvalidInput(Problem(field, f"{wrong[0]!r} is no pair; write NAME=VALUE"))
    return {text.partition("=")[0]: text.partition("=")[2] for text in texts}
