"""A site with a tenant, an hour of figures and no Redis, and a tab of a real Chromium."""
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.utils.timezone import now

from chrono_beat.core.config import Config
from chrono_beat.core.rollup import histogram
from chrono_beat_django import wiring
from chrono_beat_django.models import Rollup, Tenant
from tests.browser import devtools, letin
from tests.django.fakes import RecordingQueue


@pytest.fixture
def site(live_server, settings):
    if devtools.CHROMIUM is None:
        pytest.skip("no Chromium on PATH: install the package chromium to run these")
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.browser.letin.let_in"]
    cache.clear()
    letin.seen.clear()
    queue = RecordingQueue()
    queue.away = True
    queue.now_us = queue.workers = queue.wake_dispatchers
    Tenant.objects.get_or_create(slug="acme")
    at = now().replace(second=0, microsecond=0)
    for minute in range(55):
        us = [(minute % 13 + 1) * 50_000, (minute % 7 + 1) * 400_000]
        Rollup.objects.create(tenant="acme", span="minute", start=at - timedelta(minutes=minute), started=len(us), succeeded=2,
                              failed=minute % 3, lateness=histogram(us), lateness_max_us=max(us))
    with wiring.override(queue=queue, config=Config(partitions=8)):
        # The middleware is read when the server's handler is made, so it is made anew.
        live_server.thread.httpd.get_app().application.load_middleware()
        yield live_server.url
    cache.clear()


@pytest.fixture
def tab(site, tmp_path):
    with devtools.page(tmp_path / "profile") as page:
        yield page
