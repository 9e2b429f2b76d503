"""The example project at work, for the tests that look at whole systems."""
import pytest

from tests.system.systemkit import Site


@pytest.fixture(scope="module")
def running(redis_server, postgres_server):        # these two: they skip, or fail, where there is no server to be had
    site = Site()
    try:
        site.worker()
        yield site
    finally:
        site.close()


@pytest.fixture
def site(running):
    yield running
    print(running.tails())                         # shown where the test failed
