"""AlertStore on memory, SQLite and PostgreSQL: one row for many findings, one sender for each message."""
from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

import pytest
from django.db import connections

from chrono_beat.core import alerts
from chrono_beat.core.alerts import Finding, Over
from chrono_beat.core.ids import from_us
from chrono_beat.testing.memory_alerts import MemoryAlertStore, MemoryMute
from chrono_beat_django.models import Alert, AlertMute
from chrono_beat_django.store.alerts import DjangoAlertStore

SECOND = 1_000_000
START = 1_800_000_000 * SECOND
EVERY = 900 * SECOND
CLAIM = 120 * SECOND


class MemoryDesk:
    """The store in memory, and what tests do beside it."""

    def __init__(self):
        self.ended = []
        self.store = MemoryAlertStore(lambda alert: self.ended.append(alert.key.kind))

    def mute(self, until_us=None, **which):
        self.store.mutes.append(MemoryMute(until_us=until_us, **which))

    def open(self):
        return {row.key: row.count for row in self.store.rows if row.closed_us is None}


class DjangoDesk:
    """The same on a database."""

    def __init__(self, alias):
        self.alias, self.ended = alias, []
        self.store = DjangoAlertStore(alias, lambda alert: self.ended.append(alert.kind))
        for model in (Alert, AlertMute):
            model.objects.using(alias).all().delete()

    def mute(self, until_us=None, **which):
        AlertMute.objects.using(self.alias).create(until=until_us and from_us(until_us), **which)

    def open(self):
        rows = Alert.objects.using(self.alias).filter(closed_at__isnull=True)
        return {Over(row.kind, row.tenant, row.subject): row.count for row in rows}


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def desk(request, django_db_blocker):
    if request.param == "memory":
        yield MemoryDesk()
        return
    alias = request.getfixturevalue(f"{request.param}_alias")
    with django_db_blocker.unblock():
        yield DjangoDesk(alias)


def dead(tenant="acme", reason="error", count=1, **detail):
    return Finding("dead_letter", tenant, reason, count, {"reason": reason, **detail})


def claim(desk, now_us=START):
    return desk.store.claim_alert(now_us, CLAIM)


def told(desk, alert, now_us, **sent):
    """Note what became of attempts at receivers, by name: whether they went well. Those not named stay as they are."""
    after = {name: alert.receipt(name).after(alert.count, now_us, EVERY, sent=well) for name, well in sent.items()}
    desk.store.alert_told(alert, {**alert.receipts, **after}, now_us)


def test_what_agrees_is_one_alert_with_the_last_words_until_it_is_over(desk):
    store = desk.store

    store.note_alerts([dead(count=3), dead("other"), dead(reason="timeout")], START)
    store.note_alerts([dead(count=4, last="words")], START + SECOND)

    assert desk.open() == {("dead_letter", "acme", "error"): 7, ("dead_letter", "acme", "timeout"): 1,
                           ("dead_letter", "other", "error"): 1}
    claimed = next(alert for alert in iter(lambda: claim(desk, START + SECOND), None) if alert.count == 7)
    assert (claimed.first_at, claimed.last_at) == (from_us(START), from_us(START + SECOND))
    assert claimed.detail == {"reason": "error", "last": "words"}

    store.note_alerts([Over("dead_letter", "acme", "error"), Over("missed", "acme", "")], START + 2 * SECOND)
    store.note_alerts([dead()], START + 3 * SECOND)

    assert desk.ended == ["dead_letter"]
    assert desk.open()["dead_letter", "acme", "error"] == 1


def test_many_subjects_of_a_kind_are_told_one_by_one_up_to_a_limit_and_the_others_as_one(desk):
    """A tenant with 10,000 jobs whose workers are away is a handful of messages, not 10,000."""
    found = [Finding("skipped", "acme", f"{number:02}", 1, {"job_id": "x", "times": 5})
             for number in range(alerts.MAX_SUBJECTS + 5)]

    desk.store.note_alerts(found, START)
    desk.store.note_alerts([*found, replace(found[0], tenant="other", subject="x"), dead()], START)

    rows = desk.open()
    mine = {key.subject: count for key, count in rows.items() if key[:2] == ("skipped", "acme")}
    assert len(mine) == alerts.MAX_SUBJECTS + 1
    assert (mine["00"], mine[alerts.MORE]) == (2, 10)
    assert rows["skipped", "other", "x"] == rows["dead_letter", "acme", "error"] == 1


def test_a_claimed_alert_is_nobody_elses_until_the_claim_runs_out(desk):
    desk.store.note_alerts([dead()], START)
    first = claim(desk)
    assert first is not None and claim(desk, START + CLAIM - 1) is None

    second = claim(desk, START + CLAIM)

    assert (second.id, second.count, second.receipts) == (first.id, 1, {})


def test_the_word_of_a_claim_that_ran_out_changes_nothing(desk):
    desk.store.note_alerts([dead()], START)
    late = claim(desk)
    follower = claim(desk, START + CLAIM)

    told(desk, late, START + CLAIM + SECOND, mail=False)
    assert claim(desk, START + 2 * CLAIM - 1) is None
    told(desk, follower, START + CLAIM + 2 * SECOND, mail=True)

    desk.store.note_alerts([dead()], START + CLAIM + 2 * SECOND)
    assert claim(desk, START + CLAIM + EVERY) is None
    again = claim(desk, START + CLAIM + EVERY + 2 * SECOND)
    assert (again.count, again.receipt("mail").count, again.receipt("mail").attempts) == (2, 1, 0)


def test_what_was_told_is_told_again_after_the_quiet_time_if_it_was_noticed_again(desk):
    desk.store.note_alerts([dead()], START)
    told(desk, claim(desk), START, mail=True)
    assert claim(desk, START + EVERY) is None

    desk.store.note_alerts([dead()], START + SECOND)

    assert claim(desk, START + EVERY - 1) is None
    assert claim(desk, START + EVERY).count == 2


def test_what_was_noticed_between_claim_and_word_is_told_later(desk):
    desk.store.note_alerts([dead()], START)
    claimed = claim(desk)
    desk.store.note_alerts([dead()], START + SECOND)

    told(desk, claimed, START + SECOND, mail=True)

    assert claim(desk, START + 2 * EVERY).count == 2


def test_a_failed_message_waits_and_says_who_has_it_already(desk):
    desk.store.note_alerts([dead()], START)
    told(desk, claim(desk), START, mail=True, hook=False)
    assert claim(desk, START + 10 * SECOND - 1) is None

    again = claim(desk, START + 10 * SECOND)

    assert (again.to("mail").told_count, again.to("hook").told_count, again.to("hook").attempts) == (1, 0, 1)


def test_a_receiver_that_fails_delays_no_reminder_to_another(desk):
    desk.store.note_alerts([dead()], START)
    alert, now = claim(desk), START
    told(desk, alert, now, mail=True, hook=False)
    for attempts in range(1, 7):                            # 10, 20, 40, 80, 160 and 320 s later
        now += alerts.backoff_us(attempts)
        desk.store.note_alerts([dead()], now)
        told(desk, claim(desk, now), now, hook=False)
    assert now < START + EVERY < now + alerts.backoff_us(7)

    assert claim(desk, START + EVERY - 1) is None
    reminder = claim(desk, START + EVERY)
    due = [name for name in ("mail", "hook") if reminder.receipt(name).is_due(reminder.count, START + EVERY)]
    assert due == ["mail"]
    told(desk, reminder, START + EVERY, mail=True)
    assert claim(desk, now + alerts.backoff_us(7) - 1) is None
    assert claim(desk, now + alerts.backoff_us(7)) is not None


def test_what_failed_stands_behind_what_was_not_tried_yet(desk):
    desk.store.note_alerts([dead("first")], START)
    told(desk, claim(desk), START, mail=False)
    desk.store.note_alerts([dead("second")], START + SECOND)

    assert [claim(desk, START + 10 * SECOND).tenant for _ in range(2)] == ["second", "first"]


@pytest.mark.parametrize("which", [
    {}, {"kind": "dead_letter"}, {"tenant": "acme"}, {"subject": "error"},
    {"kind": "dead_letter", "tenant": "acme", "subject": "error"},
])
def test_a_mute_holds_back_what_it_names_until_its_end(desk, which):
    desk.mute(START + SECOND, **which)
    desk.store.note_alerts([dead()], START)

    assert claim(desk) is None
    assert claim(desk, START + SECOND).count == 1


@pytest.mark.parametrize("which", [{"kind": "missed"}, {"tenant": "other"}, {"kind": "dead_letter", "subject": "timeout"}])
def test_a_mute_of_something_else_holds_back_nothing(desk, which):
    desk.mute(**which)
    desk.store.note_alerts([dead()], START)

    assert claim(desk) is not None


def test_what_was_not_noticed_for_long_is_closed_and_not_told(desk):
    desk.store.note_alerts([dead("old")], START)
    desk.store.note_alerts([dead("new")], START + SECOND)

    desk.store.close_quiet_alerts(START + 1, START + 2 * SECOND)

    assert desk.ended == ["dead_letter"]
    assert claim(desk, START + 2 * SECOND).tenant == "new"
    assert claim(desk, START + 2 * SECOND) is None


@pytest.mark.postgres
def test_of_many_processes_that_ask_at_once_one_gets_each_message(postgres_alias, django_db_blocker):
    """Connections of their own, as processes have; all read the same rows before the first takes one."""
    with django_db_blocker.unblock():
        desk, askers = DjangoDesk(postgres_alias), 6
        desk.store.note_alerts([dead(f"t{number}") for number in range(30)], START)
        together, lock, claimed, errors = threading.Barrier(askers), threading.Lock(), [], []

        def ask():
            try:
                together.wait(30)
                while alert := claim(desk):
                    with lock:
                        claimed.append(alert.tenant)
            except Exception as error:
                errors.append(error)
            finally:
                connections[postgres_alias].close()

        threads = [threading.Thread(target=ask) for _ in range(askers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    assert not errors
    assert Counter(claimed) == Counter(f"t{number}" for number in range(30))


@pytest.mark.postgres
def test_what_many_processes_notice_at_once_is_one_alert(postgres_alias, django_db_blocker):
    with django_db_blocker.unblock():
        desk, errors = DjangoDesk(postgres_alias), []
        together = threading.Barrier(4)

        def note():
            try:
                together.wait(30)
                for _ in range(5):
                    desk.store.note_alerts([dead(), dead(reason="timeout"), dead("other")], START)
            except Exception as error:
                errors.append(error)
            finally:
                connections[postgres_alias].close()

        threads = [threading.Thread(target=note) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

        assert not errors
        assert set(desk.open().values()) == {20} and len(desk.open()) == 3
