"""What somebody is to be told of: which events are findings, how they are merged, when they are told, and in which words.

Findings that agree in kind, tenant and subject are one alert with a count, from the first until it is over. An alert is
told when it is new, and again at most once in the quiet time, and only if it was noticed again meanwhile: 10,000 dead
letters are one row for each tenant and reason, and a handful of messages.

Texts are made of codes, names and numbers alone; arguments, errors and results never go into them. What a tenant is told
holds nothing of another tenant.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from chrono_beat.core.ids import to_us

MAX_SUBJECT = 255
MAX_WAITING = 1_000
"""Different findings that a process keeps in memory until they are written down; what is beyond is counted."""

MAX_SUBJECTS = 20
"""Open alerts of one kind and tenant that are told one by one; what else is noticed of that kind is one alert more."""

MORE = "more"
"""Its subject."""

SECRET = "secret_"
"""Names of details begin so that operators alone may see."""

MAX_ATTEMPTS = 10
"""Attempts at telling one receiver before it is left out until there is something new."""

SHORTEST_BACKOFF_US = 10_000_000
LONGEST_BACKOFF_US = 3_600_000_000
CLAIM_US = 120_000_000
"""For so long nobody else sends what was claimed; whoever died in between is followed after it."""

TELL_US = 60_000_000
"""Who has not answered after so long counts as failed, so that no claim runs out under its sender."""

QUIET_CLOSES_US = 86_400_000_000
"""An alert that nothing ends is over when it was not noticed for so long."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was noticed.

    Args:
        kind: one of KINDS.
        tenant: whose; "" for the deployment's.
        subject: what it is about, where a tenant can have several: a job, a reason, a task.
        count: how often.
        detail: what the text says, as JSON can hold it.
    """

    kind: str
    tenant: str
    subject: str
    count: int
    detail: Mapping[str, Any]


class Over(NamedTuple):
    """An alert that is over."""

    kind: str
    tenant: str
    subject: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """How far one receiver is with an alert.

    Args:
        count: the alert's count when it was told last, or left out; 0 before.
        attempts: attempts that have failed since.
        again_us: it is told nothing before that, microseconds since the epoch.
    """

    count: int = 0
    attempts: int = 0
    again_us: int = 0

    def is_due(self, count: int, now_us: int) -> bool:
        """Say whether there is something new to tell, and the time for it has come."""
        return self.count < count and self.again_us <= now_us

    def after(self, count: int, now_us: int, every_us: int, *, sent: bool) -> Receipt:
        """Return what an attempt makes of it.

        Args:
            count: the alert's, as it was told.
            now_us: microseconds since the epoch.
            every_us: between two messages of the same alert.
            sent: whether it went well.
        """
        if sent or self.attempts + 1 >= MAX_ATTEMPTS:
            return Receipt(count, 0, now_us + every_us)
        return Receipt(self.count, self.attempts + 1, now_us + backoff_us(self.attempts + 1))


NOTHING_YET = Receipt()


class Outlook(NamedTuple):
    """When an alert has to be looked at again.

    Args:
        told_count: a greater count is something new ...
        again_us: ... that is told from then on.
        retry_us: when the next of those that failed is tried again; None: none did.
        attempts: the most that any of them has behind it.
    """

    told_count: int
    again_us: int
    retry_us: int | None
    attempts: int


def outlook(receipts: Iterable[Receipt], count: int) -> Outlook:
    """Sum up how far all receivers are with an alert of that count."""
    all_of_them = list(receipts) or [NOTHING_YET]
    failing = [each for each in all_of_them if each.attempts]
    steady = [each for each in all_of_them if not each.attempts] or failing
    behind = [each for each in steady if each.count < count] or steady
    return Outlook(
        min(each.count for each in steady), min(each.again_us for each in behind),
        min((each.again_us for each in failing), default=None), max(each.attempts for each in all_of_them))


@dataclass(frozen=True, slots=True)
class OpenAlert:
    """An alert as it is told.

    Args:
        id: of its row.
        kind, tenant, subject, count, detail: as in a finding; count from the first on.
        first_at, last_at: when it was noticed first and last.
        claim: until when it is the claimer's, microseconds since the epoch; what tells its claim from others.
        receipts: how far its receivers are, by the names of their senders.
        attempts: attempts at telling the present receiver that have failed.
        told_count: the count that it was told last, 0 before; what tells one message to it from the next.
    """

    id: int
    kind: str
    tenant: str
    subject: str
    count: int
    detail: Mapping[str, Any]
    first_at: datetime
    last_at: datetime
    claim: int
    receipts: Mapping[str, Receipt] = field(default_factory=dict)
    attempts: int = 0
    told_count: int = 0

    def receipt(self, name: str) -> Receipt:
        """Return how far a receiver is."""
        return self.receipts.get(name, NOTHING_YET)

    def to(self, name: str) -> OpenAlert:
        """Return it as it is told to a receiver."""
        receipt = self.receipt(name)
        return replace(self, attempts=receipt.attempts, told_count=receipt.count)


class Kind(NamedTuple):
    """What an alert says; {name} stands for a value of its detail, {secret_name} for one that operators alone may see.

    What is *for_all* comes from the deployment and hits many tenants at once: each is told of its own, operators once.
    """

    title: str
    says: str
    mend: str
    says_operator: str = ""
    for_all: bool = False


KINDS: dict[str, Kind] = {
    "dead_letter": Kind(
        "dead letters", "Executions failed for good, reason {reason}.",
        "See `chrono dead list`, mend the cause, then replay or discard them."),
    "skipped": Kind(
        "job skips", "Job {job_id}: {times} occurrences in a row found the one before still active.",
        "Its runs take longer than its period, or one hangs: see `chrono executions list`; set max_duration or a longer period."),
    "missed": Kind(
        "missed window", "Job {name}: occurrences passed without being fired.",
        "See what held the dispatchers back (`chrono doctor`); a backfill runs what is still wanted."),
    "publish_missed": Kind(
        "missed window", "{executions} executions were claimed in time and published too late for their misfire policy.",
        "See whether Redis was away or a dispatcher stood still (`chrono doctor`).", for_all=True),
    "expired": Kind(
        "missed start window", "Executions expired, since no worker began them in time; one of them is of job {job_id}.",
        "See whether workers, or the cap (max_running), are too few for the load; a backfill runs what is still wanted."),
    "retries_held": Kind(
        "failure rate", "{failed} of {ended} runs failed; retries wait.",
        "See `chrono executions list --state failed`; retries go on by themselves when the hold is over."),
    "lateness": Kind(
        "lateness objective broken", "The 99th percentile of lateness is {p99} s, the objective is {objective} s.",
        "See whether the cap (max_running) holds back the work, or workers are too few."),
    "no_worker": Kind(
        "no worker", "Pool {pool}: {jobs} jobs ({name}, …) will soon be due, and no live worker knows their task {task}.",
        "Start a worker of that pool with that task, or correct the jobs.", for_all=True),
    "no_owner": Kind(
        "partitions without owner", "{partitions} partitions have no dispatcher: their jobs do not fire.",
        "Start `chrono run` with the role dispatch, or see why it cannot reach the database."),
    "clock_skew": Kind(
        "clock skew", "The clock of host {host} is {skew} s ahead of that of {of}: that is more than SKEW_MARGIN.",
        "Let NTP set the clocks of the database, Redis and the hosts."),
    "duplicates": Kind(
        "duplicate deliveries", "{duplicates} of {deliveries} deliveries were not the first of their execution: more than usual.",
        "See whether workers die or stand still (out of memory, deployments without a warm stop)."),
    "reaps": Kind(
        "lost workers", "{reaps} executions lost their workers in five minutes; {usual} is usual.",
        "See whether workers are killed (memory, deployments without a warm stop) or cut off from Redis."),
    "reap_cap": Kind(
        "reaps", "Lane {lane}: executions lost their workers too often and were given up.",
        "See which task kills its worker (`chrono dead list --reason reap_cap`)."),
    "crowded": Kind(
        "crowded", "Its work starts later than usual ({p99} s at the 99th percentile, usually {usual} s).",
        "More workers, or another pool for it.", "The load of tenant {secret_by} rose at the same time."),
    "quarantined": Kind(
        "job cannot be planned", "Job {name} has left the due index, since it cannot be planned.",
        "See `chrono jobs show`, and correct it."),
    "overflow": Kind(
        "alerts left out", "A process noticed more different things than it may keep; some were counted only.",
        "See its log."),
}


def _seconds(us: float) -> float:
    return round(us / 1e6, 3)


def noticed(event: str, of: Mapping[str, Any], skew_margin_us: int = 0, host: str = "") -> Sequence[Finding | Over]:
    """Say what an event of :mod:`chrono_beat.telemetry` means for alerts; nothing for most.

    Args:
        event, of: name and fields.
        skew_margin_us: by how much clocks may differ.
        host: where it was noticed.
    """
    if event == "clock_skew":
        return [_skew(of, host)] if abs(of["skew_us"]) > skew_margin_us else []
    if several := _SEVERAL_BY_EVENT.get(event):
        return list(several(of))
    one = _BY_EVENT.get(event)
    return [one(of)] if one else []


def _skew(of: Mapping[str, Any], host: str) -> Finding:
    return Finding("clock_skew", "", f"{of['of']} {host}"[:MAX_SUBJECT], 1,
                   {"of": of["of"], "host": host, "skew": _seconds(of["skew_us"])})


def _place(of: Mapping[str, Any]) -> str:
    return f"{of['pool']} {of['task']}"[:MAX_SUBJECT]


def _no_worker(of: Mapping[str, Any]) -> Iterator[Finding]:
    own: dict[str, list[str]] = {"": []}
    for job in of["jobs"]:
        own[""].append(job.name)
        own.setdefault(job.tenant, []).append(job.name)
    for tenant, names in own.items():
        yield Finding("no_worker", tenant, _place(of), 1, {
            "pool": of["pool"], "task": of["task"], "jobs": len(names), "name": names[0]})


def _worker_found(of: Mapping[str, Any]) -> Iterator[Over]:
    for tenant in ("", *dict.fromkeys(job.tenant for job in of["jobs"])):
        yield Over("no_worker", tenant, _place(of))


def _publish_missed(of: Mapping[str, Any]) -> Iterator[Finding]:
    for tenant, count in (("", len(of["tenants"])), *Counter(of["tenants"]).items()):
        yield Finding("publish_missed", tenant, "", count, {"executions": count})


_SEVERAL_BY_EVENT: dict[str, Callable[[Mapping[str, Any]], Iterator[Finding | Over]]] = {
    "no_worker": _no_worker, "worker_found": _worker_found, "publish_missed": _publish_missed,
}

_BY_EVENT: dict[str, Callable[[Mapping[str, Any]], Finding | Over]] = {
    "dead_lettered": lambda of: Finding("dead_letter", of["tenant"], of["reason"], of["count"], {"reason": of["reason"]}),
    "skipped_in_a_row": lambda of: Finding(
        "skipped", of["tenant"], of["job_id"], 1, {"job_id": of["job_id"], "times": of["count"]}),
    "missed": lambda of: Finding("missed", of["tenant"], of["job_id"], of["count"], {"name": of["name"]}),
    "expired": lambda of: Finding("expired", of["tenant"], "", of["count"], {"job_id": of["job_id"]}),
    "retries_held": lambda of: Finding("retries_held", of["tenant"], "", 1, {"failed": of["failed"], "ended": of["ended"]}),
    "retries_released": lambda of: Over("retries_held", of["tenant"], ""),
    "lateness_objective_broken": lambda of: Finding(
        "lateness", of["tenant"], "", 1, {"p99": _seconds(of["p99_us"]), "objective": _seconds(of["objective_us"])}),
    "lateness_objective_met": lambda of: Over("lateness", of["tenant"], ""),
    "duplicates_high": lambda of: Finding(
        "duplicates", of["tenant"], "", 1, {"duplicates": of["duplicates"], "deliveries": of["deliveries"]}),
    "duplicates_usual": lambda of: Over("duplicates", of["tenant"], ""),
    "reaps_high": lambda of: Finding("reaps", of["tenant"], "", 1, {"reaps": of["reaps"], "usual": of["usual"]}),
    "reaps_usual": lambda of: Over("reaps", of["tenant"], ""),
    "reap_capped": lambda of: Finding("reap_cap", "", f"lane {of['lane']}", len(of["reaped"]), {"lane": of["lane"]}),
    "crowded": lambda of: Finding(
        "crowded", of["tenant"], "", 1,
        {"p99": _seconds(of["p99_us"]), "usual": _seconds(of["usual_us"]), "secret_by": of["by"]}),
    "uncrowded": lambda of: Over("crowded", of["tenant"], ""),
    "quarantined": lambda of: Finding("quarantined", of["tenant"], of["job_id"], 1, {"name": of["name"]}),
}


def merged(one: Finding | Over | None, other: Finding | Over) -> Finding | Over:
    """Return two findings of one alert as one, the later one's words with both counts; an end forgets what was before."""
    if isinstance(one, Finding) and isinstance(other, Finding):
        return replace(other, count=one.count + other.count)
    return other


def backoff_us(attempts: int) -> int:
    """Return how long a receiver is left alone that failed so often."""
    return int(min(SHORTEST_BACKOFF_US << min(max(attempts - 1, 0), 16), LONGEST_BACKOFF_US))


class _Filled(dict[str, Any]):
    def __missing__(self, name: str) -> str:
        return "?"                                  # a row of another release


def _kind(name: str) -> Kind:
    """Return a kind; one that a later release noticed can be told by this one too, though it does not know its words."""
    return KINDS.get(name) or Kind(name, "Noticed by a process of another release.", "See `chrono alerts list`.")


def title(alert: Finding | OpenAlert) -> str:
    """Return an alert in one line."""
    whose = f" of tenant {alert.tenant}" if alert.tenant else ""
    return f"{_kind(alert.kind).title}{whose}"


def message_id(alert: OpenAlert) -> str:
    """Return what all attempts at one message to a receiver have in common, whoever makes them and whatever was noticed in
    between, and no other message to it has: it knows a repeat by it.

    The instant tells apart deployments that tell the same receiver.
    """
    return f"alert-{alert.id}-{to_us(alert.first_at)}-{alert.told_count}"


def is_operators(alert: Finding | OpenAlert) -> bool:
    """Say whether operators are told of it: of what is for all they have one alert, and not each tenant's too."""
    return not (alert.tenant and _kind(alert.kind).for_all)


def text(alert: Finding | OpenAlert, *, operator: bool) -> str:
    """Say what, whose, how often, since when and what to do.

    Args:
        alert: what.
        operator: for the operator of the deployment; a tenant is told nothing of others.
    """
    kind, detail = _kind(alert.kind), _Filled(alert.detail)
    lines = [kind.says.format_map(detail)]
    if operator and kind.says_operator:
        lines.append(kind.says_operator.format_map(detail))
    if alert.tenant:
        lines.append(f"Tenant: {alert.tenant}.")
    if alert.subject == MORE:
        lines.append(f"This is the last of those beyond the {MAX_SUBJECTS} that are told one by one.")
    if isinstance(alert, OpenAlert):
        lines.append(f"Noticed {alert.count} times since {alert.first_at:%Y-%m-%d %H:%M:%S}Z, "
                     f"last at {alert.last_at:%Y-%m-%d %H:%M:%S}Z.")
    return "\n".join([*lines, kind.mend])


def shown_detail(alert: OpenAlert, *, operator: bool) -> dict[str, Any]:
    """Return the detail for a program: a tenant's sees nothing of others."""
    return {name.removeprefix(SECRET): value for name, value in alert.detail.items()
            if operator or not name.startswith(SECRET)}
