"""The checker: it accepts what is as promised, and rejects each wrong history for the right reason."""

import pytest

from chrono_beat.core.ids import execution_id
from chrono_beat.testing.history import (
    Began,
    Called,
    Capacity,
    Committed,
    Defined,
    Fault,
    Granted,
    History,
    LeaseEnded,
    Limits,
    Plan,
    Published,
    Returned,
    Row,
    RowEnded,
    Settled,
    Stopped,
    check,
)

SECOND = 1_000_000
T0 = 1_767_344_400 * SECOND
PLAN = Plan("interval", "60", anchor_us=T0)
KILLED = "worker_killed"


def at(seconds):
    return T0 + round(seconds * SECOND)


def key(number, attempt=1, job="job"):
    return execution_id(job, at(60 * number), attempt)


def row(number, attempt=1, *, job="job", **columns):
    due = columns.pop("due_us", at(60 * number))
    fields = {
        "tenant": "default", "kind": "schedule" if attempt == 1 else "retry", "version": 1, "state": "succeeded",
        "published_us": due + 1000, "started_us": due + 2000, "finished_us": due + SECOND, "worker": "w1", "deliveries": 1,
    }
    return Row(execution_id(job, at(60 * number), attempt), job, scheduled_us=at(60 * number), due_us=due, attempt=attempt,
               **{**fields, **columns})


def run(number, attempt=1, *, begin=0.002, end=1.0, token="1.1", worker="w1", version=1, result="succeeded", accepted=True,
        job="job", key_=None):
    """A body from its start to its settlement; *end* None for one that was killed at once."""
    id_, base = execution_id(job, at(60 * number), attempt), 60 * number
    found = [Began(at(base + begin), id_, token, worker, version, key_ or f"{job}:{number}")]
    if end is None:
        return [*found, Stopped(at(base + begin), id_, token, "killed")]
    return [*found, Stopped(at(base + end), id_, token), Settled(at(base + end), id_, token, result, accepted)]


def flatten(parts):
    for part in parts:
        yield from flatten(part) if isinstance(part, list) else [part]


def events(*parts):
    flat = list(flatten(parts))
    timed = [event for event in flat if not isinstance(event, Row)]
    return [*sorted(timed, key=lambda event: event.at_us), *(event for event in flat if isinstance(event, Row))]


def judged(*parts, until=130, plan=PLAN, drained=True, limits=None):
    return check(History(events(Defined(T0, "job", plan), *parts), at(until), drained), limits)


def call(number, action, begin, end, version, *, plan=None, anew=False, promised=True, execution=""):
    return [Called(at(begin), number, action, "job", execution), Committed(at(begin + 0.01), number, version, plan, anew),
            Returned(at(end), number, promised)]


BOTH = [row(1), run(1), row(2), run(2, token="1.2")]
ONE = [row(1), run(1)]
PAUSE = call(1, "pause", 70, 71, 2, plan=PLAN._replace(paused=True), anew=True)
TWO_JOBS = [Defined(T0, "other", PLAN), row(1, job="other"), run(1, job="other", token="1.9")]

RIGHT = {
    "two occurrences": [BOTH],
    "a reap of a killed worker": [
        row(1, finished_us=at(130)), run(1, end=None), Fault(at(60.1), KILLED, at(60.1), ("w1",)),
        LeaseEnded(at(120), key(1), "1.1", "expired"), run(1, begin=61, end=62, token="1.7", worker="w2"), row(2),
        run(2, token="1.8", begin=3, end=4)],
    "an outage without a claim, one row for what was missed": [
        Fault(at(50), "store_away", at(125)),
        row(1, state="missed", reason="misfire", published_us=None, started_us=None, finished_us=at(126), worker="",
            deliveries=0, missed_count=1, first_missed_us=at(60)), row(2), run(2, begin=6, end=7)],
    "a pause": [ONE, PAUSE],
    "a claimed row that a pause has voided": [
        ONE, row(2, state="cancelled", reason="superseded", published_us=None, started_us=None, worker="", deliveries=0),
        PAUSE],
    "a failed attempt and its retry": [
        row(1, state="failed", reason="error"), run(1, result="failed"),
        row(1, 2, due_us=at(90), finished_us=at(92)), run(1, 2, begin=31, end=32, token="1.2"), row(2), run(2, token="1.3")],
    "a skip behind a long body": [
        row(1, finished_us=at(150)), run(1, end=90),
        row(2, state="skipped", reason="overlap", published_us=None, started_us=None, worker="", deliveries=0)],
    "an edit of the content": [ONE, call(1, "edit", 70, 71, 2, plan=PLAN), row(2, version=2), run(2, version=2, token="1.2")],
    "a trigger": [
        ONE, row(2), run(2, token="1.2"), Called(at(70), 1, "trigger", "job"),
        Returned(at(71), 1, True, execution_id("job", at(70.5), 1)),
        Row(execution_id("job", at(70.5), 1), "job", "default", "manual", 1, at(70.5), at(70.5), 1, "succeeded", "",
            at(72), at(73), at(75), "w1", 1),
        Began(at(73), execution_id("job", at(70.5), 1), "1.5", "w1", 1),
        Stopped(at(75), execution_id("job", at(70.5), 1), "1.5")],
    "the outcome lost with its worker and the memory": [
        row(1, finished_us=at(150)), run(1), Fault(at(61.5), "memory_lost", at(61.5)), Fault(at(61.6), KILLED, at(61.6), ("w1",)),
        run(1, begin=65, end=66, token="2.1", worker="w2"), row(2), run(2, token="2.2", begin=7, end=8)],
    "two workers at their cap": [
        BOTH, TWO_JOBS, row(2, job="other"), run(2, job="other", token="1.8"), Capacity(T0, "default", 2)],
}

WRONG = {
    "a body before its due_at": ([row(1), run(1, begin=-0.5), row(2), run(2, token="1.2")], 1, "early"),
    "a row that is due before its schedule": ([row(1, due_us=at(59)), run(1), row(2), run(2, token="1.2")], 1, "early"),
    "two rows of one attempt": ([row(1), row(1), run(1), row(2), run(2, token="1.2")], 2, "twice"),
    "a row that ended twice": (
        [BOTH, RowEnded(at(61), key(1), "succeeded"), RowEnded(at(62), key(1), "skipped")], 3, "twice"),
    "a row that was opened again": ([row(1), run(1), RowEnded(at(121), key(2), "cancelled"), row(2), run(2, token="1.2")],
                                    3, "twice"),
    "two accepted outcomes": (
        [row(1), run(1), run(1, begin=5, end=6, token="1.2", worker="w2"), row(2), run(2, token="1.3")], 2, "twice"),
    "an instant without a row": ([row(1), run(1)], 3, "lost"),
    "a row that never ends": ([row(1), run(1), row(2, state="queued", finished_us=None)], 3, "lost"),
    "a success without a body": ([row(1), run(1), row(2)], 3, "lost"),
    "a failure without the next attempt": (
        [row(1, state="failed", reason="error"), run(1, result="failed"), row(2), run(2, token="1.2")], 3, "lost"),
    "a trigger without a row": (
        [BOTH, Called(at(70), 1, "trigger", "job"), Returned(at(71), 1, True, execution_id("job", at(70.5), 1))], 3, "lost"),
    "a run that nobody planned": ([BOTH, row(1.5), run(1.5, token="1.5")], 2, "unexpected"),
    "a manual run that nobody asked for": ([BOTH, row(1.5, kind="manual"), run(1.5, token="1.5")], 2, "unexpected"),
    "a retry after a success": (
        [BOTH, row(1, 2, due_us=at(90), finished_us=at(92)), run(1, 2, begin=31, end=32, token="1.4")], 2, "unexpected"),
    "a body without a row": ([BOTH, run(1.5, token="1.6")], 3, "unexpected"),
    "another body without a fault": (
        [row(1), run(1, end=None), run(1, begin=1, end=2, token="1.2", worker="w2"), row(2), run(2, token="1.3")],
        6, "repeated"),
    "another body, and the fault hit another worker": (
        [row(1), run(1, end=None), Fault(at(60.1), KILLED, at(60.1), ("w2",)), run(1, begin=1, end=2, token="1.2", worker="w2"),
         row(2), run(2, token="1.3")], 6, "repeated"),
    "another body under another key": (
        [row(1), run(1, end=None), Fault(at(60.1), KILLED, at(60.1), ("w1",)),
         run(1, begin=1, end=2, token="1.2", worker="w2", key_="job:other"), row(2), run(2, token="1.3")], 5, "repeated"),
    "a body after its outcome was accepted": (
        [row(1), run(1), Fault(at(61.5), KILLED, at(61.5), ("w1",)),
         run(1, begin=5, end=None, token="1.2", worker="w2"), row(2), run(2, token="1.3")], 6, "repeated"),
    "a body after its row had ended": (
        [row(1, state="cancelled"), RowEnded(at(60.001), key(1), "cancelled"), run(1, result="revoked"), row(2),
         run(2, token="1.2"), call(1, "cancel", 59, 64, 1, execution=key(1), promised=False)], 6, "repeated"),
    "two live leases": (
        [BOTH, Granted(at(60.0015), key(1), "1.0", "w2"), Granted(at(60.0018), key(1), "1.1", "w1")], 6, "lease"),
    "a token that shrinks": (
        [BOTH, Granted(at(60.0011), key(1), "1.3", "w2"), LeaseEnded(at(60.0012), key(1), "1.3", "given_back"),
         Granted(at(60.0018), key(1), "1.1", "w1")], 6, "lease"),
    "the outcome of a stale holder": (
        [BOTH, Granted(at(60.001), key(1), "1.1", "w1"), LeaseEnded(at(60.5), key(1), "1.1", "expired"),
         Granted(at(60.6), key(1), "1.2", "w2")], 6, "stale"),
    "the outcome of the last holder refused": (
        [row(1), run(1, accepted=False), Granted(at(60.001), key(1), "1.1", "w1"), LeaseEnded(at(60.5), key(1), "1.1", "expired"),
         row(2), run(2, token="1.2")], 6, "refused"),
    "reaped beyond the cap": (
        [BOTH, Fault(at(60), KILLED, at(61)), [
            [Began(at(60.1 + n / 100), key(1), f"0.{n}", "w1"), LeaseEnded(at(60.105 + n / 100), key(1), f"0.{n}", "expired")]
            for n in range(7)]], 6, "repeated"),
    "the old plan after a pause had returned": (
        [ONE, row(2), run(2, token="1.2"), PAUSE], 7, "old_plan"),
    "a retry of the old plan under the version of the new one": (
        [row(1, state="failed", reason="error"), run(1, result="failed"), call(1, "edit", 70, 71, 2, plan=PLAN, anew=True),
         row(1, 2, due_us=at(90), finished_us=at(92), version=2), run(1, 2, begin=31, end=32, token="1.2", version=2),
         row(2, version=2), run(2, token="1.3", version=2)], 7, "old_plan"),
    "the old content after an edit had returned": (
        [ONE, row(2, version=2), run(2, version=1, token="1.2"), call(1, "edit", 70, 71, 2, plan=PLAN)], 7, "old_plan"),
    "a cancelled execution that begins": (
        [BOTH, call(1, "cancel", 100, 101, 1, execution=key(2))], 7, "old_plan"),
    "a new plan's occurrence swallowed by the old one's end": (
        [ONE, call(1, "edit", 70, 71, 2, plan=PLAN, anew=True),
         row(2, state="cancelled", reason="superseded", published_us=None, started_us=None, worker="", deliveries=0)],
        3, "lost"),
    "a cancellation that nobody asked for": ([ONE, row(2, state="cancelled")], 7, "contradiction"),
    "skipped, and it ran": ([ONE, row(2, state="skipped", reason="overlap"), run(2, token="1.2")], 3, "contradiction"),
    "cancelled, and it succeeded": (
        [ONE, row(2, state="cancelled"), run(2, token="1.2"), call(1, "cancel", 121, 122, 1, execution=key(2))],
        3, "contradiction"),
    "unknown, and nothing was lost": ([ONE, row(2, state="dead", reason="unknown")], 3, "contradiction"),
    "missed on a fine day": ([ONE, row(2, state="missed", first_missed_us=at(120))], 3, "contradiction"),
    "overlap under forbid": ([row(1, finished_us=at(125)), run(1, end=65), row(2), run(2, token="1.2")], 9, "overlap"),
    "a skip for nothing": (
        [ONE, row(2, state="skipped", reason="overlap", published_us=None, started_us=None, worker="", deliveries=0)],
        9, "skipped"),
    "a retry that was overtaken": (
        [row(1, state="failed", reason="error"), run(1, result="failed"),
         row(1, 2, due_us=at(119), started_us=at(128), finished_us=at(129)), run(1, 2, begin=68, end=69, token="1.3"),
         row(2), run(2, token="1.2"),
         Published(at(119), key(1, 2), "early"), Published(at(120.001), key(2), "published"),
         Published(at(127), key(1, 2), "published")], 9, "overtaken"),
    "one more than the cap": ([BOTH, TWO_JOBS, row(2, job="other"), run(2, job="other", token="1.8"),
                               Capacity(T0, "default", 1)], 8, "over_cap"),
    "a run without its measures": ([row(1, started_us=None), run(1), row(2), run(2, token="1.2")], 10, "unmeasured"),
    "a row without the number of its deliveries": ([row(1, deliveries=0), run(1), row(2), run(2, token="1.2")],
                                                   10, "unmeasured"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_history_as_promised_is_valid(name):
    verdict = judged(*RIGHT[name])

    assert (verdict.word, verdict.findings, verdict.unjudged) == ("valid", (), ())


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_history_is_invalid_for_its_reason(name):
    parts, invariant, what = WRONG[name]

    verdict = judged(*parts)

    assert verdict.word == "invalid"
    assert (invariant, what) in {(found.invariant, found.what) for found in verdict.findings}


def test_a_finding_names_the_execution_and_the_instants():
    found, = judged(*WRONG["overlap under forbid"][0]).findings

    assert found.ids == (key(1), key(2))
    assert found.instants_us == (at(60.002), at(120.002))
    assert str(found).startswith("invariant 9, overlap: ")


def test_a_repeat_that_a_fault_explains_is_counted():
    assert judged(*RIGHT["a reap of a killed worker"]).duplicates == 1


def test_a_lost_memory_alone_explains_a_repeat_only_where_that_is_allowed():
    parts = [row(1), run(1, end=None), Fault(at(60.1), "memory_lost", at(60.1)),
             run(1, begin=5, end=6, token="2.1", worker="w2"), row(2), run(2, token="2.2", begin=7, end=8)]

    assert judged(*parts).word == "invalid"
    assert judged(*parts, limits=Limits(memory_excuses=True)).word == "valid"


@pytest.mark.parametrize(("parts", "options", "what"), [
    ([row(1, state="queued")], {"drained": False}, "left alone"),
    ([], {"until": 30}, "no body began"),
    ([BOTH], {"plan": PLAN._replace(kind="cron", expression="* * * * *", timezone="Europe/London")}, "the plan of job"),
    ([BOTH, Called(at(70), 1, "edit", "job")], {}, "edit of job committed"),
], ids=["not drained", "nothing ran", "a zone that is not counted", "a call of which nothing is known"])
def test_without_its_evidence_a_verdict_is_unknown(parts, options, what):
    verdict = judged(*parts, **options)

    assert verdict.word == "unknown"
    assert any(what in text for text in verdict.unjudged)


def test_the_instants_of_cron_are_counted():
    plan = Plan("cron", "*/5 9-10 * * mon")
    assert judged(plan=plan).word == "unknown"                      # names of days are not

    verdict = judged(*(run(n, token=f"1.{n}") for n in (5, 10)), row(5), row(10), plan=Plan("cron", "*/5 * * * *"), until=900)

    assert [found.instants_us for found in verdict.findings] == [(at(900),)]
