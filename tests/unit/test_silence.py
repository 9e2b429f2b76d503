"""After one call that Redis did not answer, nobody waits for it for a while (``redis/silence.py``)."""
import pytest
from redis import exceptions

from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.redis.connection import PROMPT_TIMEOUT_SECONDS, TIMEOUT_SECONDS, Connection
from chrono_beat.redis.silence import ASK_AGAIN_SECONDS, Silence
from chrono_beat.testing.clock import ManualClock

URL = "redis://127.0.0.1:1/0"


class Server:
    """A server that answers, refuses or says nothing, and counts how often it was asked."""

    def __init__(self):
        self.clock, self.asked, self.fails_with = ManualClock(), 0, None
        self.connection = Connection(URL, Silence(lambda: self.clock.monotonic_us() / 1e6))

    def ask(self):
        with self.connection.reaching():
            self.asked += 1
            if self.fails_with is not None:
                raise self.fails_with("said")

    def refuses(self, times=1):
        for _ in range(times):
            with pytest.raises(QueueUnavailable):
                self.ask()
        return self.asked


@pytest.fixture
def server():
    return Server()


def test_a_server_that_does_not_answer_is_asked_once_in_a_while(server):
    server.fails_with = exceptions.TimeoutError
    assert server.refuses(times=9) == 1
    server.clock.advance(seconds=ASK_AGAIN_SECONDS - 0.1)
    assert server.refuses(times=9) == 1
    server.clock.advance(seconds=0.1)
    assert server.refuses(times=9) == 2


def test_a_server_that_answers_again_is_asked_by_all(server):
    server.fails_with = exceptions.TimeoutError
    server.refuses()
    server.fails_with = None
    server.clock.advance(seconds=ASK_AGAIN_SECONDS)

    server.ask()
    server.ask()
    assert server.asked == 3


def test_while_one_call_asks_again_the_others_do_not_wait_with_it(server):
    server.fails_with = exceptions.TimeoutError
    server.refuses()
    server.clock.advance(seconds=ASK_AGAIN_SECONDS)

    with server.connection.reaching():
        assert server.refuses() == 1


def test_a_server_that_refuses_is_asked_each_time(server):
    """It says so at once, and may be back at once."""
    server.fails_with = exceptions.ConnectionError
    assert server.refuses(times=9) == 9


def test_who_is_refused_is_told_why_and_until_when(server):
    server.fails_with = exceptions.TimeoutError
    server.refuses()
    server.clock.advance(seconds=1.5)

    with pytest.raises(QueueUnavailable, match="no answer a moment ago; it is asked again in 4 s"):
        server.ask()


def test_only_calls_that_somebody_waits_for_have_the_short_time_out():
    prompt, patient = Connection(URL, Silence()), Connection(URL)

    def time_outs(client):
        options = client.connection_pool.connection_kwargs
        return options["socket_timeout"], options["socket_connect_timeout"]

    assert time_outs(prompt.client) == (PROMPT_TIMEOUT_SECONDS, PROMPT_TIMEOUT_SECONDS)
    assert time_outs(patient.client) == (TIMEOUT_SECONDS, 5.0)
    assert time_outs(prompt.blocking) == time_outs(patient.blocking)
