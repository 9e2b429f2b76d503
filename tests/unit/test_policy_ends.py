"""How an outcome ends its execution, and when a failed one is tried again."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chrono_beat.core.deliveries import Outcome
from chrono_beat.core.outcomes import (
    LONGEST_RETRY_US,
    MAX_ERROR_CHARACTERS,
    decide_end,
    error_text,
    needs_row,
    retry_delay_seconds,
)
from chrono_beat.core.records import GONE_VERSION, Ending, NewAttempt, OpenExecution, RetryPolicy, Start

JOB = "00000000-0000-7000-8000-000000000001"
ID = f"{JOB}:20260102T090000Z:1"
AT = 1_767_344_460_000_000
NO_JITTER = RetryPolicy(3, True, 30.0, 2.0, 3600.0, 0.0)
DEFAULT = RetryPolicy(1, False, 30.0, 2.0, 3600.0, 0.2)


def outcome(event, *, version=7, generation=4, **detail):
    return Outcome("1-1", 2, generation, event, ID, JOB, "acme", version, "4.9", "w1", AT, 2, detail)


def execution(retry=DEFAULT, *, attempt=1, retries=0, version=7, due_us=AT - 60_000_000):
    then = AT - 60_000_000
    return OpenExecution(ID, JOB, "acme", 3, then, then, attempt, retries, "running", version, retry, due_us)


def decide(event, row=None, **changed):
    return decide_end(row, outcome(event, **changed), AT + 5, lambda: 0.5)


# -- the back-off -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(
    ("attempt", "expected"),
    [(1, 30), (2, 60), (3, 120), (7, 1920), (8, 3600), (50, 3600), (100_000, 3600)],
)
def test_the_delay_doubles_up_to_the_maximum_and_does_not_overflow(attempt, expected):
    assert retry_delay_seconds(NO_JITTER, attempt, lambda: 0.9) == expected


@pytest.mark.parametrize(("chance", "expected"), [(0.0, 24.0), (0.5, 30.0), (0.999999999, 36.0)])
def test_jitter_moves_the_delay_to_both_sides(chance, expected):
    policy = NO_JITTER._replace(jitter=0.2)

    assert retry_delay_seconds(policy, 1, lambda: chance) == pytest.approx(expected)


@given(
    base=st.floats(0, 1e6), factor=st.floats(0.1, 1e3), maximum=st.floats(0, 1e6), jitter=st.floats(0, 1),
    attempt=st.integers(1, 1_000), chance=st.floats(0, 1, exclude_max=True),
)
def test_the_delay_keeps_its_bounds(base, factor, maximum, jitter, attempt, chance):
    delay = retry_delay_seconds(RetryPolicy(9, True, base, factor, maximum, jitter), attempt, lambda: chance)

    assert delay <= maximum
    assert delay >= min(maximum, base * (1 - jitter))


def test_r149_the_delay_lies_within_base_less_jitter_and_the_maximum_and_never_overflows():
    """R149: jitter is applied before the cap, so no delay exceeds it."""
    policy, random = RetryPolicy(60, True, 10.0, 2.0, 600.0, 0.2), Random(149).random

    delays = [retry_delay_seconds(policy, attempt, random) for attempt in range(1, 21) for _ in range(500)]

    assert 8 <= min(delays) < 9 and max(delays) == 600
    assert retry_delay_seconds(policy, 50, random) <= 600
    assert retry_delay_seconds(policy, 10**6, random) <= 600


@pytest.mark.parametrize(
    ("asked", "waits"),
    [(120, 120), (7200, 3600), (0.5, 30), (-5, 30), (float("nan"), 30), (float("inf"), 3600), ("soon", 30), (True, 30)],
)
def test_a_target_that_asks_to_be_left_alone_is_obeyed_up_to_the_maximum(asked, waits):
    ending, attempt, _ = decide("failed", execution(NO_JITTER), error={"type": "HTTP 429", "retry_after_seconds": asked})

    assert ending.state == "failed"
    assert attempt.due_us == AT + waits * 1_000_000


def test_what_a_target_asks_for_adds_no_attempt():
    row = execution(NO_JITTER, attempt=3, retries=2)

    assert decide("failed", row, error={"type": "HTTP 503", "retry_after_seconds": 5})[1] is None


# -- ends -------------------------------------------------------------------------------------------------------------

def test_a_start_is_written_as_such():
    assert decide("started") == (None, None, Start(ID, AT, "w1", 2))


@pytest.mark.parametrize(
    ("event", "state", "reason", "if_version", "if_generation"),
    [
        ("succeeded", "succeeded", "", None, None),
        ("revoked", "cancelled", "", None, None),
        ("superseded", "cancelled", "superseded", None, None),
        ("no_worker", "dead", "no_worker", None, None),
        ("rejected", "dead", "invalid", None, None),
        ("reap_cap", "dead", "reap_cap", None, None),
        ("lost", "dead", "worker_lost", None, None),
        ("too_late", "dead", "worker_lost", None, None),        # handed out before, in time
        # Rule 11: what did not run ends only the row and the generation that it was decided for.
        ("skipped", "skipped", "overlap", 7, 4),
        ("expired", "expired", "", 7, 4),
    ],
)
def test_an_end_that_needs_no_look_at_the_row(event, state, reason, if_version, if_generation):
    ending = Ending(ID, state, reason, AT, "w1", 2, "", if_version, if_generation, 2)

    assert decide(event) == (ending, None, None)


def test_a_message_past_its_own_expiry_is_expired_whatever_the_rows_version():
    ending, attempt, start = decide_end(None, outcome("too_late")._replace(deliveries=1), AT, lambda: 0.5)

    assert (ending.state, ending.reason, ending.if_version, attempt, start) == ("expired", "", None, None, None)


def test_an_unknown_event_is_refused():
    with pytest.raises(ValueError, match="teleported"):
        decide("teleported")


@pytest.mark.parametrize(("version", "reason"), [(9, "superseded"), (GONE_VERSION, "deleted")])
def test_a_void_ends_rows_older_than_it_under_the_version_that_was_read(version, reason):
    queued, voided = execution()._replace(state="queued"), outcome("voided", version=version)._replace(token="")

    assert decide_end(queued, voided, AT, lambda: 0.5) == (
        Ending(ID, "cancelled", reason, AT, "w1", 2, "", 7, 4, 2), None, None)


@pytest.mark.parametrize(("state", "token"), [("running", ""), ("queued", "4.9")], ids=["began", "was granted"])
def test_rule12_a_void_of_what_may_have_begun_and_will_not_be_heard_of_again_is_not_called_cancelled(state, token):
    """A worker that dies just after a body began has not said so."""
    row, voided = execution()._replace(state=state), outcome("voided", version=9)._replace(token=token)

    assert decide_end(row, voided, AT, lambda: 0.5) == (
        Ending(ID, "dead", "unknown", AT, "w1", 2, "", 7, 4, 2), None, None)


def test_a_void_leaves_a_row_that_the_new_plan_has_taken_over():
    assert decide("voided", execution(version=9), version=9) == (None, None, None)


@pytest.mark.parametrize("event", ["failed", "timeout", "retry", "voided"])
def test_what_has_ended_already_is_left_alone(event):
    assert decide(event) == (None, None, None)


# -- plain failures ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("event", "reason"), [("failed", "error"), ("timeout", "timeout")])
def test_a_failure_is_final_where_nobody_asked_for_more(event, reason):
    """A task that raised after charging a card is not run again unasked."""
    ending, attempt, _ = decide(event, execution())

    assert (ending.state, ending.reason, attempt) == ("dead", reason, None)


def test_a_failure_is_tried_again_up_to_max_attempts():
    rows = [execution(NO_JITTER, attempt=n, retries=n - 1) for n in (1, 2, 3)]

    decided = [decide("failed", row) for row in rows]

    assert [ending.state for ending, *_ in decided] == ["failed", "failed", "dead"]
    assert decided[0][1] == NewAttempt(ID, 2, 1, AT + 30_000_000)
    assert decided[1][1] == NewAttempt(ID, 3, 2, AT + 60_000_000)
    assert decided[2][1] is None


def test_a_replay_counts_its_retries_anew_while_attempt_numbers_grow():
    ending, attempt, _ = decide("failed", execution(NO_JITTER, attempt=4, retries=0))

    assert ending.state == "failed"
    assert attempt == NewAttempt(ID, 5, 1, AT + 30_000_000)


# -- the task's own retry ---------------------------------------------------------------------------------------------

def test_a_retry_that_the_task_asked_for_carries_its_time_and_arguments():
    retry = {"countdown_us": 9_000_000, "args": "[2]", "kwargs": "{}", "retries": 1, "max_retries": 3}

    ending, attempt, _ = decide("retry", execution(), retry=retry)

    assert (ending.state, ending.reason) == ("failed", "error")
    assert attempt == NewAttempt(ID, 2, 1, AT + 9_000_000, "[2]", "{}")


def test_a_retry_may_name_an_instant_and_never_lies_in_the_past():
    later, earlier = ({"eta_us": AT + us, "args": "[]", "kwargs": "{}"} for us in (77, -77))

    assert decide("retry", execution(), retry=later)[1].due_us == AT + 77
    assert decide("retry", execution(), retry=earlier)[1].due_us == AT


def test_a_retry_beyond_the_calendar_is_brought_back():
    retry = {"countdown_us": 10**25, "args": "[]", "kwargs": "{}"}

    assert decide("retry", execution(), retry=retry)[1].due_us == AT + 5 + LONGEST_RETRY_US


def test_the_default_of_one_attempt_does_not_end_the_tasks_own_retries():
    assert decide("retry", execution(attempt=8, retries=7), retry={"countdown_us": 1})[1].attempt == 9


def test_max_attempts_set_on_the_job_ends_the_tasks_own_retries_too():
    row = execution(NO_JITTER, attempt=3, retries=2)

    ending, attempt, _ = decide("retry", row, retry={"countdown_us": 1})

    assert (ending.state, ending.reason, attempt) == ("dead", "error", None)


def test_a_retry_whose_note_was_lost_waits_as_long_as_the_job_says():
    assert decide("retry", execution())[1] == NewAttempt(ID, 2, 1, AT + 30_000_000)


def test_a_retry_without_a_note_ends_after_celerys_three():
    """A body may raise Retry itself, without asking for anything: it must not go on for ever."""
    assert decide("retry", execution()._replace(attempt=3, retries=2))[1] is not None
    assert decide("retry", execution()._replace(attempt=4, retries=3))[1] is None


# -- the error text ---------------------------------------------------------------------------------------------------

def test_an_error_is_kept_as_type_message_and_the_tail_of_its_traceback():
    text = error_text({"error": {"type": "ValueError", "message": "no card", "traceback": "x" * 9_000 + "last line"}})

    assert text.startswith("ValueError: no card\n")
    assert text.endswith("last line")
    assert len(text) == MAX_ERROR_CHARACTERS


@pytest.mark.parametrize("detail", [{}, {"error": None}, {"error": "odd"}])
def test_no_error_is_an_empty_text(detail):
    assert error_text(detail) == ""


def test_an_error_text_holds_nothing_that_a_database_refuses():
    assert error_text({"error": {"type": "E", "message": "a\0b\ud800c"}}) == "E: a\N{REPLACEMENT CHARACTER}b?c"


# -- rule 12 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", ["skipped", "expired", "voided", "missed", "cancelled"])
def test_rule12_what_may_have_run_in_a_lost_generation_ends_as_unknown(event):
    """Nobody saw it run, and nobody can say that it did not."""
    decided = outcome(event, version=2, unknown_before=5_000)._replace(token="")
    assert needs_row(decided)

    before, _, _ = decide_end(execution(due_us=4_999, version=1), decided, AT, lambda: 0.5)
    after, _, _ = decide_end(execution(due_us=5_000, version=1)._replace(state="queued"), decided, AT, lambda: 0.5)

    assert (before.state, before.reason, before.if_generation) == ("dead", "unknown", decided.generation)
    assert after.state != "dead"


def test_rule12_leaves_a_row_that_a_newer_plan_has_taken_over():
    decided = outcome("voided", version=2, unknown_before=5_000)
    assert decide_end(execution(due_us=1, version=2), decided, AT, lambda: 0.5) == (None, None, None)


def test_a_cancel_ends_a_row_of_any_version_while_the_lane_remembers():
    never_drawn = outcome("cancelled", version=GONE_VERSION)._replace(token="", worker="", deliveries=0)
    assert decide_end(None, never_drawn, AT, lambda: 0.5) == (
        Ending(ID, "cancelled", "", AT, "", 0, "", None, 4, 2), None, None)


def test_a_cancelled_copy_that_a_worker_had_had_may_have_run():
    """Its lease ran out before it could say that it had begun."""
    ending, _, _ = decide("cancelled", version=GONE_VERSION)
    assert (ending.state, ending.reason, ending.if_version) == ("dead", "unknown", None)


def test_an_outcome_of_a_forgotten_grant_says_when_it_had_started_at_the_latest():
    """Redis forgot the start before it was recorded, and the worker told it once more how it ended."""
    told = outcome("succeeded", runtime_ms=250.0)._replace(tenant="", version=0)

    ending, _, start = decide_end(None, told, AT, lambda: 0.5)

    assert ending.state == "succeeded"
    assert start == Start(ID, AT - 250_000, "w1", 2)
    assert decide_end(None, outcome("succeeded", runtime_ms=250.0), AT, lambda: 0.5)[2] is None
