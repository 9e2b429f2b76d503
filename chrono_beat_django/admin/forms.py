"""The forms of jobs and tenants.

A job's form *is* a call of :mod:`chrono_beat_django.jobs`: its last check is to carry out what was asked for, so what
is refused there, at whatever moment, is an error of the form, in the same words as everywhere, and nothing typed is
lost. Django's admin wraps the page in a transaction, which takes the call with it if the page fails later.
"""
from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django import forms
from django.core.exceptions import ValidationError
from django.core.validators import URLValidator, validate_email

from chrono_beat.core import callback, targets
from chrono_beat.core import field_checks as checks
from chrono_beat.core.definition import JobDefinition
from chrono_beat.core.errors import Conflict, InvalidInput, NotFound, Problem
from chrono_beat.core.records import CONCURRENCY_POLICIES, IDEMPOTENT, MISFIRE_POLICIES, SCHEDULE_KINDS
from chrono_beat.core.retry import Retry
from chrono_beat.core.schedule import zone_keys
from chrono_beat_django import jobs, tenant_limits, wiring
from chrono_beat_django.admin import fields, instants
from chrono_beat_django.edits import SCHEDULE_FIELDS, Edit, preview_edit
from chrono_beat_django.models import KEY_SCOPES, TARGET_KINDS, Job, JobEvent, Tenant
from chrono_beat_django.preview import Preview
from chrono_beat_django.store.definitions import COLUMNS, RETRY_COLUMNS

MOST_TENANTS_SUGGESTED = 100
MOST_CHANGES_TOLD = 5

_FIELDS = {column: field for field, column in COLUMNS.items()}
_RETRY_FIELDS = {column: field for field, column in RETRY_COLUMNS.items()}
_SECONDS_OR_NEVER = "Seconds; empty: never."


class Tried(NamedTuple):
    """What would come of a form.

    Args:
        runs: the next runs, by what is typed of the schedule; None where that is wrong.
        edit: what the edit of a stored job makes of it; None where it would be refused.
    """

    runs: Preview | None = None
    edit: Edit | None = None


class JobForm(forms.ModelForm):
    """A job, each field named as its column."""

    loaded_version = fields.Number(required=False, widget=forms.HiddenInput)
    tenant = fields.suggesting("Tenant", "Whose job it is; it stays with its tenant.")
    name = fields.line("Name", "Unique among the tenant's jobs that are not over.", required=True)
    target_kind = fields.choice("Target", TARGET_KINDS, "A Celery task, an HTTP call, or a message to stock workers.")
    task = fields.line("Task", "Name of the Celery task, such as shop.tasks.send_report; empty for an HTTP call.")
    url = fields.line("URL", "Of an HTTP call: where the kwargs are posted to as JSON.", wide=True)
    timeout_seconds = fields.number("Timeout", "Seconds that one HTTP call takes at most; empty: 30.")
    queue = fields.line("Queue", "Of a message: the Celery queue that stock workers consume.")
    args = fields.lines("Args", "A JSON array, kept byte for byte.")
    kwargs = fields.lines("Kwargs", "A JSON object, kept byte for byte.")
    headers = fields.lines("Headers", "A JSON object of further headers; empty: none. Values of secret ones are hidden; leave "
                                      "the mask to keep them.", rows=2)
    schedule_kind = fields.choice("Kind", SCHEDULE_KINDS)
    expression = fields.line("Expression", required=True, wide=True)
    timezone = fields.suggesting("Zone", "IANA name of the zone that a cron text is read in and runs are shown in.")
    start_at = fields.instant("Start")
    end_at = fields.instant("End")
    anchor_at = fields.instant("Anchor")
    max_occurrences = fields.number("Max occurrences", "Scheduled occurrences in all; empty: no end.")
    spread_seconds = fields.number("Spread", "Seconds; empty: the tenant's, 0: none.")
    paused = forms.BooleanField(
        label="Paused", required=False, help_text="Kept without being fired; it may still be triggered.")
    note = fields.lines("Note", "For people.", rows=2)
    pool = fields.line("Pool", "Celery queue; empty: the tenant's.")
    priority = fields.number("Priority", "0 is drawn first, 9 last.", required=True)
    soft_limit_seconds = fields.number("Soft limit", "Seconds until the task is told to stop; empty: never.")
    max_duration_seconds = fields.number("Max duration", "Seconds until a run is ended; empty: never.")
    expires_after_seconds = fields.number("Expires after", f"Time in which it may still start. {_SECONDS_OR_NEVER}")
    concurrency = fields.choice(
        "Concurrency", CONCURRENCY_POLICIES,
        "An occurrence whose predecessor is still active is skipped (forbid), runs beside it (allow), or takes its place "
        "(replace).")
    exclusion_group = fields.line("Exclusion group", "Jobs of the tenant with the same word never run at the same time.")
    misfire = fields.choice("Misfire", MISFIRE_POLICIES, "What happens to occurrences that nobody was there to fire.")
    misfire_cap = fields.number("Misfire cap", "Missed occurrences that “all” runs at most; empty: the default.")
    grace_seconds = fields.number("Grace", "Seconds it may be late before it is a misfire; empty: the default.")
    idempotent = fields.choice("Idempotent", IDEMPOTENT, "Whether running twice does no harm.")
    key_scope = fields.choice("Key scope", KEY_SCOPES, "Whether attempts share their idempotency key.")
    max_attempts = fields.number("Max attempts", "Empty: 3 where idempotent, else 1.")
    retry_base_seconds = fields.number("Retry base", "Seconds before the second attempt.", required=True)
    retry_factor = fields.number("Retry factor", "By which each further delay grows.", required=True)
    retry_maximum_seconds = fields.number("Retry maximum", "Seconds that no delay exceeds.", required=True)
    retry_jitter = fields.number("Retry jitter", "Share of the delay that is drawn at random, 0 to 1.", required=True)

    actor = ""
    """Who fills in the form; the page sets it."""

    trial = False
    """Whether to check and write nothing; `tried` says then what would come of it. Such a form is never valid."""

    class Meta:
        model = Job
        fields = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tried = Tried()
        job, zone = self.instance, instants.form_zone()
        self.initial = {name: getattr(job, name) for name in self.fields if hasattr(job, name)} | self.initial
        self.initial["loaded_version"] = job.version
        self.initial["headers"] = callback.masked(job.headers)
        self.initial["task"] = "" if job.target_kind == "http" else job.task
        if (at := once_at(job)) is not None:
            self.initial["expression"] = instants.for_form(at)
        if job._state.adding:
            self.initial.setdefault("tenant", wiring.config().default_tenant)
        self._explain(zone)
        self._suggest()

    def _explain(self, zone: str) -> None:
        """Say what instants mean here: the zone stands beside each."""
        read = f"Shown in {zone}, and read in it unless you give an offset"
        self.fields["expression"].help_text = (
            "cron: five fields or an alias, “0 9 * * mon-fri”. interval: seconds, “90”. celery: a JSON list of minute, "
            f"hour, day of week, day of month, month. once: an instant, “2026-01-02 09:00”. {read}.")
        for name, text in (
            ("start_at", "No run before it; an interval's first run."), ("end_at", "No run at or after it."),
            ("anchor_at", "An instant that an interval runs at; a changed schedule counts from the change unless you "
                          "change this too."),
        ):
            if name in self.fields:
                self.fields[name].help_text = f"{text} {read}."

    def _suggest(self) -> None:
        """Offer zones and tenants, and the stored words that are none of those on offer."""
        self.fields["timezone"].widget.suggestions = sorted(zone_keys())
        if "tenant" in self.fields:
            slugs = Tenant.objects.order_by("slug").values_list("slug", flat=True)
            self.fields["tenant"].widget.suggestions = list(slugs[:MOST_TENANTS_SUGGESTED])
        for name, field in self.fields.items():
            if isinstance(field.widget, forms.Select):
                stored = self.initial.get(name)
                if stored not in [word for word, _ in field.widget.choices]:
                    field.widget.choices = [*field.widget.choices, (stored, stored)]

    def _post_clean(self) -> None:
        """Create or change the job. Takes the place of the model's own checks, which know less."""
        if self.trial:
            self.tried = self._try_runs()
        if self._errors:
            return
        try:
            if self.trial:
                self.tried = self._try()
            else:
                self.instance = self._created() if self.instance._state.adding else self._changed()
        except InvalidInput as refused:
            for problem in refused.problems:
                self._add_problem(problem)
        except Conflict as refused:
            changes = self._changes_since()
            self.add_error(None if changes else "name", changes or str(refused))
        except NotFound as refused:
            self.add_error(None, f"{refused} any more: it was deleted meanwhile")

    def is_valid(self) -> bool:
        """Say whether the job was saved."""
        return super().is_valid() and not self.trial

    def _try_runs(self) -> Tried:
        """Work out the runs by what is typed of the schedule, whatever is wrong with the rest."""
        typed = {_FIELDS[column]: value for column, value in self._values().items() if column in _FIELDS}
        values = {field: value for field, value in typed.items() if field in SCHEDULE_FIELDS}
        tenant = None if checks.wrong_tenant(typed.get("tenant") or "") else typed["tenant"]
        definition = JobDefinition(**{**dict.fromkeys(("schedule_kind", "expression"), ""), **values,
                                      "name": "preview", "task": "preview", "tenant": tenant,
                                      "spread": None if typed.get("spread") is None else 0})
        try:
            return Tried(runs=jobs.preview(definition, operator=True))
        except InvalidInput:
            return Tried()

    def _try(self) -> Tried:
        if self.instance._state.adding:
            return Tried(runs=jobs.preview(self._definition(), operator=True))
        return Tried(edit=preview_edit(self.instance, self._changes(), operator=True))

    def save(self, commit: bool = True) -> Job:
        """Return the job: it was saved by the last check."""
        self.save_m2m = lambda: None
        job: Job = self.instance
        return job

    def _created(self) -> Job:
        return jobs.create_from(self._definition(), source="admin", actor=self.actor)

    def _definition(self) -> JobDefinition:
        required = dict.fromkeys(("name", "task", "schedule_kind", "expression"), "")
        return JobDefinition(**required | self._given(lambda column, value: True))

    def _changed(self) -> Job:
        version = self.cleaned_data.get("loaded_version")
        return jobs.update(self.instance, actor=self.actor, expected_version=version, **self._changes())

    def _changes(self) -> dict[str, Any]:
        """Return what differs. What was not touched is not passed on: a browser cannot give back every byte."""
        def differs(column: str, value: Any) -> bool:
            if column in ("task", "headers") and value == self.initial[column]:
                return False                              # what is shown of these is not all that is stored
            stored = getattr(self.instance, column)
            return bool(value != (fields.plain_lines(stored) if isinstance(stored, str) else stored))

        return self._given(differs)

    def _given(self, wanted: Any) -> dict[str, Any]:
        """Return arguments of JobDefinition from the columns that were posted and are wanted."""
        values = {
            column: value for column, value in self._values().items()
            if not self.fields[column].widget.value_omitted_from_data(self.data, self.files, self.add_prefix(column))
            and wanted(column, value)
        }
        given = {_FIELDS[column]: value for column, value in values.items() if column in _FIELDS}
        if values.keys() & _RETRY_FIELDS.keys():
            stored = {field: getattr(self.instance, column) for column, field in _RETRY_FIELDS.items()}
            given["retry"] = Retry(**stored | {_RETRY_FIELDS[column]: value for column, value in values.items()
                                               if column in _RETRY_FIELDS})
        return given

    def _values(self) -> dict[str, Any]:
        """Return what was typed by column, the instant of a one-off as it is stored."""
        values = {column: value for column, value in self.cleaned_data.items() if column != "loaded_version"}
        kind = values.get("schedule_kind") or self.instance.schedule_kind
        if kind == "once" and isinstance(at := values.get("expression"), datetime):
            stored = once_at(self.instance)
            values["expression"] = self.instance.expression if at == stored else at.astimezone(UTC).isoformat()
        return values

    def clean_expression(self) -> str | datetime:
        """Read a one-off's instant in the form's zone; fields are cleaned in order, so the kind is known by now."""
        text: str = self.cleaned_data["expression"]
        if self.cleaned_data.get("schedule_kind") != "once":
            return text
        return fields.Instant().to_python(text) or ""

    def _changes_since(self) -> str:
        """Say who changed the job since the form was loaded; "" where nobody did."""
        version = self.cleaned_data.get("loaded_version")
        now = None if self.instance._state.adding else Job.objects.filter(id=self.instance.id).first()
        if now is None or version is None or now.version == version:
            return ""
        events = JobEvent.objects.filter(job_id=now.id).exclude(action="trigger").order_by("-at")
        if isinstance(version, int):
            events = events.filter(version__gt=version)
        told = "; ".join(f"{event.action} by {event.actor or 'an unnamed caller'} at {instants.in_utc(event.at)}"
                         for event in events[:MOST_CHANGES_TOLD])
        return (f"Nothing was saved: the job was changed since you opened this page and is at version {now.version}, "
                f"not {version}{f' ({told})' if told else ''}. What you typed is still below; open the job anew and "
                "enter it there.")

    def _add_problem(self, problem: Problem) -> None:
        """Put a problem on the field that it is about."""
        column = COLUMNS.get(problem.field, problem.field)
        if problem.field == "retry":
            column = RETRY_COLUMNS.get(problem.message.partition(" ")[0], "max_attempts")
        if column in self.fields:
            self.add_error(column, problem.message)
        else:
            self.add_error(None, f"{problem.field}: {problem.message}")


def once_at(job: Job) -> datetime | None:
    """Return the instant of a one-off; None for other jobs, and where the stored text is no instant."""
    if job.schedule_kind != "once":
        return None
    at, wrong = checks.instant(job.expression)
    return None if wrong else at


class TenantForm(forms.ModelForm):
    """A tenant."""

    slug = fields.line("Slug", "1 to 63 letters, digits, - and _; it stays as it is.", required=True)
    weight = fields.number("Weight", "Share of the workers among tenants with work.", required=True)
    max_running = fields.number("Max running", "Executions that may run at the same time.", required=True)
    pool = fields.line("Pool", "Celery queue of jobs that name none.")
    max_jobs = fields.number("Max jobs", "Jobs that are not over.", required=True)
    create_rate = fields.number("Create rate", "Jobs created per second, in the long run.", required=True)
    create_burst = fields.number("Create burst", "Jobs created at once after a pause.", required=True)
    lateness_objective_seconds = fields.number(
        "Lateness objective", "Seconds; an alert is raised when the 99th percentile of lateness passes it; empty: never.")
    spread_seconds = fields.number(
        "Spread", "Seconds; jobs that set none start each at an offset of its own within them.", required=True)
    failure_threshold = fields.number(
        "Failure threshold", "Share of failures (0 to 1) from which on retries are held back; empty: never.")
    retries_paused_until = fields.instant("Retries held until")
    retention_days = fields.number("Retention", "Days; empty: the deployment's.")
    alert_email = fields.line("Alert e-mail", "Addresses, with commas between; empty: none.")
    alert_url = fields.line("Alert URL", "Empty: none.")

    class Meta:
        model = Tenant
        fields = ("name", "paused")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in self.fields:
            self.initial.setdefault(name, getattr(self.instance, name, None))
        zone = instants.form_zone()
        self.fields["retries_paused_until"].help_text = (
            f"Empty: they are not. Shown in {zone}, and read in it unless you give an offset.")

    def clean(self) -> Mapping[str, Any]:
        """Say everything that is wrong at once."""
        super().clean()
        for name, allowed in tenant_limits.NUMBERS.items():
            value, wrong = checks.number(self._value(name), allowed)
            self._settle(name, value, wrong)
        self._settle("retries_paused_until", *checks.instant(self._value("retries_paused_until")))
        for name, check in (("slug", checks.wrong_tenant), ("pool", self._wrong_pool),
                            ("alert_email", _wrong_addresses), ("alert_url", _wrong_url)):
            if name in self.fields:
                text = str(self._value(name)).strip()
                self._settle(name, text, checks.unstorable(text) or check(text))
        return self.cleaned_data

    def _value(self, name: str) -> Any:
        """Return what was typed, or what is stored where the form that was sent has no such field."""
        omitted = self.fields[name].widget.value_omitted_from_data(self.data, self.files, self.add_prefix(name))
        return getattr(self.instance, name) if omitted else self.cleaned_data.get(name)

    def _settle(self, name: str, value: Any, wrong: str | None) -> None:
        if name in self._errors:
            return
        if wrong:
            self.add_error(name, wrong)
        else:
            self.cleaned_data[name] = value

    def _wrong_pool(self, pool: str) -> str | None:
        return targets.wrong_tenant_pool(pool, wiring.config())


def _wrong_addresses(text: str) -> str | None:
    for address in filter(None, (part.strip() for part in text.split(","))):
        try:
            validate_email(address)
        except ValidationError:
            return f"{checks.cut(address)} is not an e-mail address"
    return None


def _wrong_url(text: str) -> str | None:
    if not text:
        return None
    try:
        URLValidator(schemes=("http", "https"))(text)
    except ValidationError:
        return f"{checks.cut(text)} is not an http or https URL"
    return None
