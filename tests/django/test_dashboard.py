"""The dashboard: who may see it, what it says, and that it costs the same for any number of tenants."""
from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from django.db import OperationalError
from django.utils.timezone import now

from chrono_beat.core.config import Config
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.records import WorkerReport
from chrono_beat.core.rollup import histogram
from chrono_beat_django import jobs, wiring
from chrono_beat_django.dashboard import panels
from chrono_beat_django.dashboard.charts import MOST_POINTS, ceiling, chart
from chrono_beat_django.dashboard.views import _charts
from chrono_beat_django.figures import Figures
from chrono_beat_django.models import Alert, Dispatcher, Rollup, Tenant
from tests.django.fakes import RecordingQueue
from tests.django.test_figures import NOON

pytestmark = pytest.mark.django_db
PAGES = ("", "tenants/", "tenants/acme/", "forecast/", "partitions/")
SECOND_US = 1_000_000


class Queue(RecordingQueue):
    """A Redis with one worker and three entries that wait."""

    def now_us(self):
        self._answer()
        return wiring.now_us()

    def workers(self):
        self._answer()
        return [WorkerReport("w1", ["chrono"], ["*"], 4, "prefork", 0)]

    def backlog(self, lane, pool):
        return {"acme": 3}

    def capped(self, lane, pools, limit):
        return 0, ["acme"]


@pytest.fixture(autouse=True)
def redis():
    cache.clear()
    Tenant.objects.get_or_create(slug="default")
    Tenant.objects.create(slug="acme")
    queue = Queue()
    with wiring.override(queue=queue, config=Config(partitions=8)):
        yield queue
    cache.clear()


@pytest.fixture
def ada(client):
    client.force_login(User.objects.create_superuser("ada"))
    return client


def add(tenant, *late, minutes_ago=5, **counts):
    us = [int(seconds * SECOND_US) for seconds in late]
    return Rollup(tenant=tenant, span="minute", start=now().replace(second=0, microsecond=0) - timedelta(minutes=minutes_ago),
                  started=len(us), lateness=histogram(us), lateness_max_us=max(us, default=0), **counts)


def member():
    Dispatcher.objects.create(member="host:1", expires_at=now() + timedelta(minutes=5))


@pytest.mark.parametrize("page", PAGES)
def test_only_staff_with_the_permission_sees_a_page(client, page):
    assert client.get(f"/chrono/{page}").headers["Location"].startswith("/admin/login/")
    ben = User.objects.create_user("ben", is_staff=True)
    client.force_login(ben)
    assert client.get(f"/chrono/{page}").status_code == 403
    ben.user_permissions.add(Permission.objects.get(codename="view_dashboard"))
    assert client.get(f"/chrono/{page}").status_code == 200
    User.objects.update(is_staff=False)
    assert client.get(f"/chrono/{page}").status_code == 403


@pytest.mark.parametrize("page", PAGES)
def test_a_page_costs_the_same_for_any_number_of_tenants(ada, page, django_assert_max_num_queries):
    def cost():
        cache.clear()
        with django_assert_max_num_queries(20) as seen:
            answer = ada.get(f"/chrono/{page}")
        return len(seen), len(answer.content)

    jobs.create(tenant="acme", name="a", task="shop.report", cron="* * * * *")
    Rollup.objects.bulk_create([add("acme", 1.0)])
    few, _ = cost()
    Tenant.objects.bulk_create(Tenant(slug=f"t{number:05}", pool=f"p{number}") for number in range(300))
    Rollup.objects.bulk_create(add(f"t{number:05}", 2.0, failed=1) for number in range(300))

    many, size = cost()

    assert many == few
    assert size < 100_000


@pytest.mark.parametrize("page", PAGES)
def test_nothing_on_a_page_is_inline_or_from_outside(ada, page):
    answer = ada.get(f"/chrono/{page}")
    text = answer.content.decode()

    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "style=" not in text and "<style" not in text and "http://" not in text and "https://" not in text
    assert text.count("<script") == text.count("<script src=") == 1


@pytest.mark.parametrize("page", PAGES)
def test_without_redis_a_page_says_so_and_shows_the_rest(ada, redis, page):
    Rollup.objects.bulk_create([add("acme", 7.0)])
    redis.away = True

    text = ada.get(f"/chrono/{page}").content.decode()

    assert ("Redis does not answer" in text) == (page != "forecast/")
    if page in ("", "tenants/"):
        assert "acme" in text and "7.0" in text or "6.9" in text


def test_the_overview_shows_what_is_now_and_what_alarms(ada):
    member()
    Alert.objects.create(kind="lateness", tenant="acme", text="<b>late</b>")
    Alert.objects.create(kind="over", tenant="acme", text="gone", closed_at=now())

    answer = ada.get("/chrono/")
    text = answer.content.decode()

    assert (answer.context["queue"].waiting, answer.context["queue"].slots) == (3, 4)
    assert "&lt;b&gt;late" in text and "gone" not in text


def tiles_of(answer, name="tiles"):
    return {tile.name: tile for tile in answer.context[name]}


@pytest.mark.parametrize("page", ["", "tenants/acme/"])
def test_figures_lead_to_their_rows_for_who_may_see_those(client, page):
    ben = User.objects.create_user("ben", is_staff=True)
    client.force_login(ben)
    ben.user_permissions.add(Permission.objects.get(codename="view_dashboard"))
    job = jobs.create(tenant="acme", name="a", task="shop.report", cron="0 3 * * *")
    Alert.objects.create(kind="missed", tenant="acme", subject=str(job.id), text="late")
    Rollup.objects.bulk_create([add("acme", 7.5, dead=1)])

    assert "/admin/" not in client.get(f"/chrono/{page}").content.decode()
    ben.user_permissions.add(*Permission.objects.filter(codename__startswith="view_", content_type__app_label="chrono_beat"))
    answer = client.get(f"/chrono/{page}?hours=168")

    for tile in (*tiles_of(answer).values(), *tiles_of(answer, "figures").values()):
        if tile.url:
            assert client.get(tile.url).status_code == 200, tile
    assert "letters=open" in tiles_of(answer)["Dead letters"].url
    assert "late=7" in tiles_of(answer, "figures")["Lateness p99"].url
    assert ("tenant=acme" in tiles_of(answer)["Running"].url) == bool(page)
    assert client.get(f"/admin/chrono_beat/job/{job.id}/history/").status_code == 200
    assert f"/admin/chrono_beat/job/{job.id}/history/" in answer.content.decode()


def test_the_overview_says_what_keeps_everybody_waiting(ada, redis):
    job = jobs.create(tenant="acme", name="a", task="shop.report", cron="0 3 * * *")
    type(job).objects.filter(pk=job.pk).update(next_run_at=now() - timedelta(minutes=3))
    redis.workers = lambda: [WorkerReport("relay@h", ["chrono.relay"], ["*"], 50, "relay", 0)]

    answer = ada.get("/chrono/")
    text = answer.content.decode()

    assert "No dispatcher is alive" in text and "No worker draws the pool chrono:" in text
    assert {name for name, tile in tiles_of(answer).items() if tile.bad} == {
        "Overdue jobs", "Worker slots", "Dispatchers", "Partitions unowned"}
    assert (tiles_of(answer)["Overdue jobs"].value, tiles_of(answer)["Worker slots"].value) == ("1", "0")
    member()
    cache.clear()
    redis.workers = Queue().workers
    assert "class=\"warning\"><strong>" not in ada.get("/chrono/").content.decode()


@pytest.mark.parametrize("page", PAGES)
def test_without_the_database_a_page_says_so_and_tells_no_host(client, monkeypatch, page):
    def away():
        raise OperationalError("connection to server at db.internal failed for user shop")

    client.force_login(User.objects.create_superuser("ada"))
    monkeypatch.setattr(panels, "now", away)

    answer = client.get(f"/chrono/{page}")

    text = answer.content.decode()
    assert (answer.status_code, "The database cannot be read" in text, "db.internal" in text) == (503, True, False)


def test_a_minute_that_is_not_over_draws_no_standstill():
    def drawn(seconds, length, name="load"):
        point = Figures(tenant=None, start=NOON, seconds=length, started=120)
        charts = _charts([point], NOON - timedelta(hours=1), NOON + timedelta(hours=1), NOON + timedelta(seconds=seconds))
        return next(found.rows for found in charts if found.key == name)

    assert drawn(59, 60) == ()
    assert [values[0] for _, values in drawn(60, 60)] == ["120"]
    assert [values[0] for _, values in drawn(600, 3_600)] == ["12"]


def test_tenants_are_sorted_by_what_the_link_says(ada):
    Rollup.objects.bulk_create([add("acme", 9.0, failed=1), add("globex", 1.0, failed=5), add("calm", 0.1)])

    def order(query):
        return [found.tenant for found, _, _ in ada.get(f"/chrono/tenants/{query}").context["rows"]]

    assert order("") == order("?by=nonsense&hours=-3") == ["acme", "globex", "calm"]
    assert order("?by=failed") == ["globex", "acme"]


def test_a_tenant_that_is_not_there_is_not_found(ada):
    assert ada.get("/chrono/tenants/nobody/").status_code == 404


def test_the_forecast_counts_jobs_and_says_what_a_spread_does(ada):
    jobs.create(tenant="acme", name="a", task="shop.report", cron="* * * * *")

    ahead = ada.get("/chrono/forecast/").context["ahead"]

    assert sum(ahead.total) in (1_439, 1_440)
    assert [row.tenant for row in ahead.tenants] == ["acme"]
    assert ada.get("/chrono/tenants/acme/").context["ahead"].peaks == ahead.peaks


def test_healthz_is_well_with_a_dispatcher_and_says_what_is_not(client, redis):
    def health():
        answer = client.get("/chrono/healthz")
        return answer.status_code, answer.json()["checks"]

    assert health()[1]["dispatcher"] == "none alive"
    member()
    assert health() == (200, dict.fromkeys(("database", "redis", "dispatcher", "lateness"), "ok"))
    job = jobs.create(tenant="acme", name="a", task="shop.report", cron="0 3 * * *")
    type(job).objects.filter(pk=job.pk).update(next_run_at=now() - timedelta(minutes=3))
    assert health()[0] == 503 and "60 s" in health()[1]["lateness"]
    Tenant.objects.filter(slug="acme").update(paused=True)
    assert health()[0] == 200
    redis.away = True
    redis._answer = lambda: (_ for _ in ()).throw(QueueUnavailable("redis://:hunter2@host"))
    assert health() == (503, {"database": "ok", "redis": "away", "dispatcher": "ok", "lateness": "ok"})
    assert client.post("/chrono/healthz").status_code == 405


@pytest.mark.parametrize(("value", "top"), [(0, 1), (0.7, 0.8), (1, 1), (99, 100), (401, 500), (float("nan"), 1)])
def test_an_axis_ends_with_a_round_number(value, top):
    assert ceiling(value) == pytest.approx(top)


def test_no_peak_is_lost_in_a_chart_of_many_points_and_gaps_stay_gaps():
    points = [(NOON + timedelta(minutes=minute), 500.0 if minute == 777 else 1.0) for minute in range(1_440) if
              not 100 < minute < 400]

    found = chart("load", "Load", "executions", NOON, NOON + timedelta(days=1), [("due", points)])

    assert "at most 500" in found.description
    assert len(found.lines[0].pieces) == 2
    assert sum(len(piece.split()) for piece in found.lines[0].pieces) <= MOST_POINTS
    assert sum("500" in values for _, values in found.rows) == 1


def test_a_tenant_is_found_by_its_name_a_page_at_a_time(ada, django_assert_max_num_queries):
    Tenant.objects.bulk_create(Tenant(slug=f"t{number:03}") for number in range(120))
    Rollup.objects.bulk_create([add("t007", 2.0, skipped=3)])

    def page(query):
        with django_assert_max_num_queries(20):
            context = ada.get(f"/chrono/tenants/{query}").context
        return [each.tenant for each, _, _ in context["rows"]], context["following"]

    assert page("?q=T007") == (["t007"], "")
    assert ada.get("/chrono/tenants/?q=t007").context["rows"][0][0].skipped == 3
    first, following = page("?q=t")
    second, _ = page(f"?q=t&after={following}")
    assert first + second[:1] == ["default", *(f"t{number:03}" for number in range(50))]
    assert page("?q=%3Cb%3E") == ([], "")
    assert "&lt;b&gt;" in ada.get("/chrono/tenants/?q=%3Cb%3E").content.decode()


def test_what_comes_every_five_minutes_is_a_level_line_of_a_day():
    points = [(NOON + timedelta(minutes=minute), 0.0 if minute % 5 else 7.0) for minute in range(1_440)]

    found = chart("load", "Load", "executions", NOON, NOON + timedelta(days=1), [("due", points)])

    assert len({point.split(",")[1] for point in found.lines[0].pieces[0].split()}) == 1
