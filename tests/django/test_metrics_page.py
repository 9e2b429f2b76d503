"""``/chrono/metrics``: who may read it, what it says, and that it costs the same for any number of tenants."""
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.utils.timezone import now
from prometheus_client.parser import text_string_to_metric_families

from chrono_beat.core.config import Config, find_problems
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat_django import wiring
from chrono_beat_django.dashboard import deployment
from chrono_beat_django.models import Dispatcher, Execution, Partition
from tests.django.test_dashboard import Queue

pytestmark = pytest.mark.django_db
URL, TOKEN = "/chrono/metrics", "correct horse battery staple"
OPEN = {"HTTP_AUTHORIZATION": f"Bearer {TOKEN}"}


@pytest.fixture
def redis():
    cache.clear()
    Partition.objects.update(owner="", expires_at=now())
    queue = Queue()
    with wiring.override(queue=queue, config=Config(
            partitions=Partition.objects.count(), metrics_tenants=2, metrics_tokens=("the one before this one", TOKEN))):
        yield queue
    cache.clear()


def execution(tenant, number, state, **columns):
    at = now()
    return Execution(id=f"{tenant}{number}{state}", job_id=f"00000000-0000-0000-0000-{number:012}", tenant=tenant, partition=0,
                     scheduled_at=at, due_at=at, first_due_at=at, attempt=1, state=state, job_version=1, **columns)


def scrape(client):
    cache.clear()
    answer = client.get(URL, **OPEN)
    assert answer.status_code == 200
    return {family.name: {next(iter(sample.labels.values()), ""): sample.value for sample in family.samples}
            for family in text_string_to_metric_families(answer.content.decode())}


@pytest.mark.parametrize("given", ["", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer ÿ"])
def test_without_a_token_of_the_setting_nothing_is_told(client, redis, given):
    answer = client.get(URL, **({"HTTP_AUTHORIZATION": given} if given else {}))

    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert b"chrono_" not in answer.content


def test_there_is_no_such_page_without_the_setting(client, admin_client, redis):
    with wiring.override(config=Config(), queue=redis):
        assert client.get(URL, **OPEN).status_code == 404
        assert admin_client.get(URL).status_code == 404


def test_a_token_that_can_be_guessed_is_refused_and_none_is_shown():
    assert [problem.field for problem in find_problems({"METRICS_TOKENS": ["hunter2"]})] == ["METRICS_TOKENS"]
    assert TOKEN not in repr(Config(metrics_tokens=(TOKEN,)))


def test_the_page_tells_the_deployments_figures(client, redis):
    Dispatcher.objects.create(member="host:1", expires_at=now() + timedelta(minutes=5))
    Dispatcher.objects.create(member="host:2", expires_at=now() - timedelta(seconds=1))
    Partition.objects.filter(number__lt=3).update(owner="host:1", expires_at=now() + timedelta(minutes=5))
    Partition.objects.filter(number=3).update(owner="host:2", expires_at=now() - timedelta(seconds=1))
    Execution.objects.bulk_create([
        *(execution(f"t{number}", number, "running") for number in range(5)), execution("t4", 9, "running"),
        execution("acme", 20, "dead", finished_at=now()), execution("acme", 21, "succeeded", finished_at=now())])

    found = scrape(client)

    assert found == {
        "chrono_backlog": {"acme": 3}, "chrono_running": {"t4": 2, "t3": 1, "other": 3}, "chrono_dead_letters": {"acme": 1},
        "chrono_capped_tenants": {"": 1}, "chrono_partitions_unowned": {"": Partition.objects.count() - 3},
        "chrono_dispatchers": {"": 1}, "chrono_workers": {"": 1}, "chrono_worker_slots": {"": 4},
        "chrono_reachable": {"database": 1, "redis": 1},
    }
    assert found.keys() == deployment.FIGURES.keys()


def test_figures_of_a_server_that_is_away_are_left_out_and_nothing_of_it_is_told(client, redis):
    redis._answer = lambda: (_ for _ in ()).throw(QueueUnavailable("redis://:hunter2@host"))

    found = scrape(client)

    assert found["chrono_reachable"] == {"database": 1, "redis": 0}
    assert found["chrono_dead_letters"] == {"other": 0}
    assert "chrono_backlog" not in found


def test_a_look_costs_the_same_for_any_number_of_tenants(client, redis, django_assert_max_num_queries):
    def cost():
        with django_assert_max_num_queries(10) as seen:
            found = scrape(client)
        return len(seen), sum(map(len, found.values()))

    Execution.objects.bulk_create([execution(f"t{number}", number, "running") for number in range(5)])
    few = cost()
    Execution.objects.bulk_create([execution(f"t{number}", number, "running") for number in range(5, 1_000)])
    redis.backlog = lambda lane, pool: {f"t{number}": 1 for number in range(1_000)}

    assert cost() == (few[0], few[1] + 2)                     # two more tenants are named in the backlog
    with django_assert_max_num_queries(0):
        client.get(URL, **OPEN)                               # a look that is fresh is not taken again
