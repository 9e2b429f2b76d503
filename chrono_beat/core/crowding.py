"""Who starts later than usual because another one's load rose, and what else is out of a tenant's norm.

**Rule.** A tenant is compared with itself: its last five minutes with the hour before them. It is crowded if all hold:

1. it started at least `LEAST_STARTS` times in each of both, so that a percentile says something;
2. its p99 of lateness is `TIMES` what it was, and at least `LEAST_RISE_US` more;
3. its own share of all starts did not rise by more than `OWN_RISE`: who is late by its own burst is not crowded;
4. another tenant's share rose by at least `SHARE_RISE`, and it has at least `LEAST_SHARE`: of these, the one whose share
   rose most is named. Without one all are late together, because of too few workers, and nobody crowds anybody.

**Example.** acme starts ten times a minute, p99 0.2 s, beside globex with five. globex floods and has 90 % of all starts;
acme's p99 is 4 s: acme is crowded by globex. If acme had flooded itself, or all starts came 4 s late in equal shares,
nobody would be.

**Reaps.** A tenant's leases that ran out in five minutes are compared with its own five minutes before, on the average of
the hour: at least `LEAST_REAPS`, and `TIMES` as many. So are those of all tenants together, under the tenant "", where more
than one had any: then workers die rather than one tenant's tasks.

**Ends.** What was told lasts until the value is back below `BACK` times the norm *as it was when it was told*: the norm of
an hour later would have got used to it.

**Weakness.** Shares are of starts and not of time: who occupies workers by few long runs is not named, its cap is what
bounds it. The latest are those that have not started yet; they are seen once they have. Reaps are compared by time, not by
load: a tenant that runs three times as much among workers that die as ever is out of its norm.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chrono_beat.core.rollup import RELATIVE_ERROR, percentile

RECENT_US = 300_000_000
USUAL_US = 3_600_000_000
LEAST_STARTS = 20
TIMES = 3.0
BACK = 2.0
LEAST_RISE_US = 1_000_000
OWN_RISE = 0.05
SHARE_RISE = 0.2
LEAST_SHARE = 0.3
LEAST_DUPLICATES = 5
LEAST_DUPLICATES_SHARE = 0.05
LEAST_REAPS = 5
DEPLOYMENT = ""
"""The tenant that stands for all of them."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a tenant did within a span: first starts, deliveries and duplicates of what ended, histogram of lateness, and leases
    that ran out."""

    started: int = 0
    deliveries: int = 0
    duplicates: int = 0
    lateness: str = ""
    reaps: int = 0

    @property
    def p99_us(self) -> float:
        """The 99th percentile of lateness; 0 where nothing started."""
        return percentile(self.lateness, 0.99) or 0.0

    @property
    def duplicates_share(self) -> float:
        """Duplicates of all deliveries."""
        return self.duplicates / self.deliveries if self.deliveries else 0.0


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """A tenant's last five minutes and the hour before; its objective for the p99 of lateness, None without one."""

    tenant: str
    recent: Load = Load()
    usual: Load = Load()
    objective_us: float | None = None

    @property
    def usual_reaps(self) -> float:
        """Reaps in five minutes of the hour before, on average."""
        return self.usual.reaps * RECENT_US / USUAL_US


class Finding(NamedTuple):
    """Something out of the norm: an event of the table, and its fields without the tenant."""

    event: str
    tenant: str
    fields: Mapping[str, object]


ENDS = {"crowded": "uncrowded", "lateness_objective_broken": "lateness_objective_met", "duplicates_high": "duplicates_usual",
        "reaps_high": "reaps_usual"}
"""Which event says that another one is over."""


def find(loads: Sequence[TenantLoad]) -> list[Finding]:
    """Return what is out of the norm, given all tenants with starts or ends in the last five minutes."""
    rises, shares = _shares(loads)
    risen = sorted((tenant for tenant, rise in rises.items() if rise >= SHARE_RISE and shares[tenant] >= LEAST_SHARE),
                   key=lambda tenant: -rises[tenant])
    found = []
    for load in loads:
        recent, usual = load.recent, load.usual
        others = [tenant for tenant in risen if tenant != load.tenant]
        if others and rises[load.tenant] <= OWN_RISE and min(recent.started, usual.started) >= LEAST_STARTS:
            p99, norm = recent.p99_us, usual.p99_us
            if p99 >= TIMES * norm and p99 - norm >= LEAST_RISE_US:
                found.append(Finding("crowded", load.tenant, {
                    "by": others[0], "p99_us": round(p99), "usual_us": round(norm)}))
        if load.objective_us is not None and recent.p99_us > load.objective_us * (1 + RELATIVE_ERROR):
            found.append(Finding("lateness_objective_broken", load.tenant, {
                "p99_us": round(recent.p99_us), "objective_us": round(load.objective_us)}))
        share, norm = recent.duplicates_share, usual.duplicates_share
        if recent.duplicates >= LEAST_DUPLICATES and share >= max(LEAST_DUPLICATES_SHARE, TIMES * norm):
            found.append(Finding("duplicates_high", load.tenant, {
                "duplicates": recent.duplicates, "deliveries": recent.deliveries, "usual": round(norm, 4)}))
    reaping = [load for load in loads if load.recent.reaps]
    for load in [*loads, *([together(loads)] if len(reaping) > 1 else [])]:
        if load.recent.reaps >= max(LEAST_REAPS, TIMES * load.usual_reaps):
            found.append(Finding("reaps_high", load.tenant, {
                "reaps": load.recent.reaps, "usual": round(load.usual_reaps, 2)}))
    return found


def together(loads: Sequence[TenantLoad]) -> TenantLoad:
    """Return the reaps of all tenants as those of one."""
    return TenantLoad(
        DEPLOYMENT, Load(reaps=sum(load.recent.reaps for load in loads)), Load(reaps=sum(load.usual.reaps for load in loads)))


def is_over(finding: Finding, load: TenantLoad) -> bool:
    """Say whether what was found is over; *load* is what the tenant does now, empty where it does nothing."""
    fields = finding.fields
    if finding.event == "crowded":
        norm = float(str(fields["usual_us"]))
        return load.recent.p99_us < max(BACK * norm, norm + LEAST_RISE_US / 2)
    if finding.event == "lateness_objective_broken":
        idle = not load.recent.started
        return load.objective_us is None or (not load.usual.started if idle else load.recent.p99_us <= load.objective_us)
    norm = float(str(fields["usual"]))
    if finding.event == "reaps_high":
        return load.recent.reaps < max(BACK * norm, LEAST_REAPS)
    return load.recent.duplicates_share < max(BACK * norm, LEAST_DUPLICATES_SHARE)


def _shares(loads: Sequence[TenantLoad]) -> tuple[dict[str, float], dict[str, float]]:
    """Return by how much each tenant's share of all starts rose, and the share."""
    now = sum(load.recent.started for load in loads) or 1
    then = sum(load.usual.started for load in loads) or 1
    shares = {load.tenant: load.recent.started / now for load in loads}
    return {load.tenant: shares[load.tenant] - load.usual.started / then for load in loads}, shares
