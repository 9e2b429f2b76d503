"""The loop: failures, waking, stopping, health; and the table of events."""

import logging
import threading

import pytest

from chrono_beat import telemetry
from chrono_beat.core.errors import QueueUnavailable, StoreUnavailable
from chrono_beat.host_clock import SystemClock
from chrono_beat.services.service import HEALTHY_WITHIN_US, LONGEST_BACKOFF_US, Runner, Service
from chrono_beat.testing.clock import ManualClock


class Scripted(Service):
    """Takes one answer of its script each step: a wait, or an error to raise; then stops itself."""

    def __init__(self, clock, *script, **options):
        super().__init__("scripted", clock, **options)
        self.script = list(script)
        self.seen = []

    def step(self, now_us):
        self.seen.append(now_us)
        if not self.script:
            self.request_stop()
            return 0
        answer = self.script.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.fixture
def clock():
    return ManualClock(monotonic_us=0)


@pytest.fixture
def events():
    heard = []
    unsubscribe = telemetry.subscribe(lambda event, fields: heard.append((event, dict(fields))))
    yield heard
    unsubscribe()


def run(service):
    """Run the service's loop in its own thread to its end; sleeping moves the clock, so this takes no time."""
    service.start()
    assert service.join(30)
    return service


def test_a_service_sleeps_as_long_as_its_step_says(clock):
    service = run(Scripted(clock, 5_000, 0, 70_000))

    assert service.seen == [0, 5_000, 5_000, 75_000]


def test_no_sleep_is_longer_than_the_longest(clock):
    assert run(Scripted(clock, 10**9, longest_wait_us=300)).seen == [0, 300]


def test_a_wake_ends_a_sleep_and_one_during_a_step_is_not_lost(clock):
    class Woken(Scripted):
        def step(self, now_us):
            if len(self.seen) == 0:
                self.wake()                                  # somebody wakes it in the middle of its step
            elif len(self.seen) == 1:
                clock.call_in(self.wake, us=400)
            return super().step(now_us)

    assert run(Woken(clock, 900_000, 900_000)).seen == [0, 0, 400]


@pytest.mark.parametrize("error", [QueueUnavailable("gone"), StoreUnavailable("gone"), KeyError("a bug")])
def test_failures_are_tried_again_for_ever_with_a_bounded_pause(clock, error):
    service = run(Scripted(clock, *[error] * 9, 0))

    pauses = [later - earlier for earlier, later in zip(service.seen, service.seen[1:], strict=False)]
    assert pauses == [100_000, 200_000, 400_000, 800_000, 1_600_000, 3_200_000, *[LONGEST_BACKOFF_US] * 3, 0]
    assert service.failures == 0


def test_an_outage_of_days_does_not_overflow_the_pause(clock):
    service = Scripted(clock, QueueUnavailable("gone"))
    service.failures = 10**6

    assert service.turn(0) == LONGEST_BACKOFF_US


def test_wakes_do_not_turn_a_pause_after_a_failure_into_a_storm(clock):
    service = Scripted(clock, QueueUnavailable("gone"))
    for n in range(9):
        clock.call_in(service.wake, us=n * 10_000)

    assert run(service).seen == [0, 100_000]


def test_an_unexpected_error_is_logged_with_its_traceback_and_counted(clock, caplog, events):
    service = run(Scripted(clock, ZeroDivisionError("one bad row"), 0))

    [record] = [r for r in caplog.records if r.exc_info]
    assert "one bad row" in str(record.exc_info[1])
    assert service.errors == 1
    assert [event for event, _ in events] == [
        "service_started", "service_failed", "service_recovered", "service_stopped"]


def test_health_goes_red_when_no_step_goes_well_and_green_when_one_does(clock):
    """A transient error in a first step must not leave a service half alive."""
    service = Scripted(clock, QueueUnavailable("first query"), QueueUnavailable("still"), 0)
    service.turn(0)
    assert service.healthy(clock.monotonic_us())

    clock.advance(us=HEALTHY_WITHIN_US + 1)
    service.turn(0)
    assert not service.healthy(clock.monotonic_us())

    service.turn(0)
    assert service.healthy(clock.monotonic_us())


def test_a_service_that_sleeps_for_an_hour_is_healthy_meanwhile(clock):
    service = Scripted(clock, 3_600_000_000, longest_wait_us=3_600_000_000)
    service.turn(0)

    clock.advance(seconds=3_600)

    assert service.healthy(clock.monotonic_us())


def test_a_step_that_hangs_is_unhealthy():
    clock, entered, leave = ManualClock(monotonic_us=0), threading.Event(), threading.Event()

    class Hanging(Service):
        def step(self, now_us):
            entered.set()
            leave.wait(30)
            return 0

    service = Hanging("hanging", clock)
    service.start()
    assert entered.wait(30)
    clock.advance(us=HEALTHY_WITHIN_US + 1)

    assert not service.healthy(clock.monotonic_us())

    leave.set()
    assert service.stop()


def test_draining_goes_on_until_it_is_done_or_its_time_is_over(clock):
    class Draining(Scripted):
        left = 3

        def drain(self, now_us):
            self.left -= 1
            return 10_000 if self.left else None

    class Endless(Scripted):
        def drain(self, now_us):
            return 10_000

    assert run(Draining(clock)).left == 0
    begun = clock.monotonic_us()
    run(Endless(clock, drain_us=50_000))
    assert clock.monotonic_us() - begun == 50_000


def test_a_failure_while_draining_ends_it(clock, caplog):
    class Broken(Scripted):
        def drain(self, now_us):
            raise StoreUnavailable("gone")

    run(Broken(clock))

    assert "stopping without it" in caplog.text


def test_a_runner_starts_all_and_stops_them_in_order(events):
    """With the host's real clock, as in production: stopping must not wait for the sleep to end."""
    ended = []

    class Idle(Service):
        def step(self, now_us):
            return 3_600_000_000

    clock = SystemClock()
    services = [Idle(name, clock, longest_wait_us=3_600_000_000) for name in ("first", "second", "third")]
    runner = Runner(services, clock, at_thread_end=lambda: ended.append(threading.current_thread().name))

    runner.start()
    assert (runner.failed(), runner.unhealthy()) == (False, [])
    assert runner.stop()

    assert ended == ["chrono-first", "chrono-second", "chrono-third"]
    assert not runner.failed()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ended_unasked_is_a_failure(clock):
    class Leaving(Service):
        def step(self, now_us):
            raise SystemExit

    service = Leaving("leaving", clock)
    service.start()
    assert service.join(30)

    assert Runner([service], clock).failed()
    assert Runner([service], clock).unhealthy() == ["leaving"]


# -- events -----------------------------------------------------------------------------------------------------------

def test_an_event_that_is_not_in_the_table_is_refused():
    with pytest.raises(ValueError, match="not in the table"):
        telemetry.emit("teleported", lane=1)
    with pytest.raises(ValueError, match="not in the table"):
        telemetry.emit("kept", remove=1)


def test_an_observer_that_fails_disturbs_nobody(events, caplog):
    unsubscribe = telemetry.subscribe(lambda event, fields: 1 / 0)

    telemetry.emit("kept", removed=3)
    unsubscribe()

    assert events == [("kept", {"removed": 3})]
    assert "observer failed" in caplog.text


def test_nobody_listens_until_somebody_subscribes():
    assert not telemetry.listening()
    unsubscribe = telemetry.subscribe(telemetry.log)
    assert telemetry.listening()
    unsubscribe()
    assert not telemetry.listening()


def test_the_log_shows_events_at_the_level_of_the_table(caplog):
    caplog.set_level(logging.INFO, "chrono_beat")

    telemetry.log("kept", {"removed": 3})
    telemetry.log("partitions_owned", {"member": "a", "count": 2})
    telemetry.log("partitions_taken", {"member": "a", "partitions": list(range(64))})

    assert [r.getMessage() for r in caplog.records] == [
        "kept removed=3", "partitions_taken member='a' partitions=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9] and 54 more"]
