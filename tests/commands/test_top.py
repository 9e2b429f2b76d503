"""``chrono top``: what it shows of a deployment, once and live."""
import io
import json
from dataclasses import replace
from datetime import timedelta

import pytest
from rich.console import Console

from chrono_beat.celery.commands import top
from chrono_beat.core import ids, rollup
from chrono_beat.core.errors import StoreUnavailable
from chrono_beat.core.records import WorkerReport
from chrono_beat_django import overview, wiring
from chrono_beat_django.models import Dispatcher, Partition, Rollup, Tenant
from tests.commands.test_commands import AwayQueue

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]


@pytest.fixture
def busy(queue):
    """Three tenants: one late, one with a backlog, one paused; a dispatcher that owns all partitions but one; a worker."""
    at = ids.from_us(wiring.now_us())
    minute = at.replace(second=0, microsecond=0) - timedelta(minutes=1)
    for slug, late_us, started in (("acme", 9_000_000, 60), ("calm", 1_000, 600)):
        Tenant.objects.create(slug=slug, max_running=5)
        Rollup.objects.create(tenant=slug, span="minute", start=minute, started=started, lateness_max_us=late_us,
                              lateness=rollup.histogram([late_us] * started))
    Tenant.objects.create(slug="full", paused=True)
    Dispatcher.objects.create(member="host:1", expires_at=at + timedelta(minutes=5))
    Partition.objects.update(owner="host:1", expires_at=at + timedelta(minutes=5))
    Partition.objects.filter(number=3).update(owner="")
    queue.report_worker(WorkerReport("w@host", ("chrono",), (), 8, "prefork", queue.now_us()), 60_000_000)
    return queue


def test_tenants_stand_worst_first_and_partitions_without_an_owner_are_named(run, busy):
    told = json.loads(run("top", "--json"))

    assert [row["tenant"] for row in told["tenants"]][:2] == ["acme", "calm"]
    assert told["tenants"][0]["lateness_p99"] == pytest.approx(9, rel=0.03)
    assert told["without_owner"] == [3]
    assert [(row["name"], row["partitions"]) for row in told["dispatchers"]] == [("host:1", told["partitions"] - 1)]
    assert [(row["pool"], row["workers"], row["slots"]) for row in told["pools"]] == [("chrono", 1, 8)]
    assert [row["tenant"] for row in json.loads(run("top", "--json", "--by", "started"))["tenants"]][:2] == ["calm", "acme"]


def test_it_is_printed_once_where_nobody_watches(run, busy):
    out = run("top")

    assert "tenants by lateness, figures of 5 minutes" in out
    assert f"1 of {wiring.config().partitions} partitions have no owner: 3" in out
    assert out.index("acme") < out.index("calm")


def test_it_says_what_is_away_and_goes_on(run):
    with wiring.override(queue=AwayQueue()):
        out = run("top", "--once")

    assert "Redis does not answer" in out
    assert "No dispatcher is alive: nothing fires. Start one by chrono run." in out


def test_a_tenant_with_a_backlog_alone_is_there_too(run, busy, monkeypatch):
    monkeypatch.setattr(type(busy), "backlog", lambda self, lane, pool, tenant=None: {"full": 7} if pool == "chrono" else {})
    by_backlog = json.loads(run("top", "--json", "--by", "backlog"))

    assert (by_backlog["tenants"][0]["tenant"], by_backlog["tenants"][0]["backlog"]) == ("full", 7)
    assert by_backlog["tenants"][0]["paused"] is True
    assert by_backlog["waiting"] == 7
    assert "full" in [row["tenant"] for row in json.loads(run("top", "--json"))["tenants"]]


def test_keys_sort_and_quit_and_a_database_that_is_away_is_no_end(busy):
    asked = []

    def read(by):
        asked.append(by)
        if len(asked) == 3:
            raise StoreUnavailable("connection refused")
        return replace(overview.read(), by=by)

    keys = iter(["", "b", "\x1b[A", "S", "q", "never"])
    screen = io.StringIO()
    top.watch(read, lambda seconds: next(keys), "lateness", 5.0, Console(file=screen, force_terminal=True, width=160, height=50))

    assert asked == ["lateness", "lateness", "backlog", "backlog", "started"]
    assert "acme" in screen.getvalue()
    assert "The database does not answer: connection refused" in screen.getvalue()


def test_a_narrow_terminal_goes_without_some_columns_and_says_which(busy):
    def drawn(width):
        console = Console(width=width, height=40, file=io.StringIO())
        console.print(top.picture(overview.read(), "", width))
        return console.file.getvalue()

    narrow = drawn(80)
    assert "…" not in narrow
    assert "late p99" in narrow and "backlog" in narrow and "twice" not in narrow.partition("no room for")[0]
    assert "no room for failed/s, skipped, twice" in narrow
    assert "no room" not in drawn(120)


def test_no_more_tenants_are_looked_at_than_a_bound(run):
    run("top", "--limit", "51", status=2)
    with pytest.raises(ValueError, match="limit: "):
        overview.read(limit=51)
