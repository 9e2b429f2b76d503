"""Fixtures of the worker's tests. A site is a prefix and a broker of its own on the one Redis of the test run."""
import pytest

from tests.celery.workerkit import Site

POOLS = {"prefork": 2, "threads": 4, "gevent": 4, "solo": 1}


@pytest.fixture
def make_site(redis_server):
    """Make sites that are closed, with their workers, when the test is over."""
    sites = []

    def make(**settings):
        sites.append(Site(redis_server, **settings))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


@pytest.fixture
def site(make_site):
    return make_site()


@pytest.fixture(scope="module", params=list(POOLS))
def pool_site(request, redis_server):
    """A site with one worker of each pool in turn, for tests that leave it as it was."""
    site = Site(redis_server)
    site.worker(request.param, POOLS[request.param])
    yield site
    site.close()
