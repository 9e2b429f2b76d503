"""Schedules in words: right for this grammar, with whichever release does the wording."""
from datetime import UTC, datetime, timedelta

import pytest

from chrono_beat.core.schedule import CeleryCrontab, Cron, Interval, Once
from chrono_beat.words import span, words


@pytest.mark.parametrize(("text", "said"), [
    ("0 9 * * mon-fri", "At 09:00, Monday through Friday"),
    ("*/15 * * * *", "Every 15 minutes"),
    ("@daily", "At 00:00"),
    ("@Weekly", "At 00:00, only on Sunday"),
    ("0 9 * * 5#2", "At 09:00, on the second Friday of the month"),
    ("0 9 ? * friL", "At 09:00, on the last Friday of the month"),
    ("30 22-1 * * *", "At 00:30, 01:30, 22:30 and 23:30"),
    ("0 9 * * 6/2", "At 09:00, only on Saturday"),
    ("0 0 1 * mon", "At 00:00, on day 1 of the month, or on Monday"),
    ("0 0 31 dec fri", "At 00:00, on day 31 of the month, or on Friday, only in December"),
])
def test_cron_text_is_said_in_words(text, said):
    found = words(Cron(text, "Europe/London"))

    assert found.replace(", and ", " and ") == f"{said}, on the clocks of Europe/London"


def test_the_other_kinds_have_words_of_their_own():
    anchor = datetime(2026, 1, 7, 12, tzinfo=UTC)

    assert words(Interval(90, anchor=anchor)) == "Every 90 seconds of elapsed time, counted from 2026-01-07 12:00:00 UTC"
    assert words(Once(anchor, timezone="Europe/Paris")) == "Once, on Wednesday 2026-01-07 at 13:00:00 in Europe/Paris"
    assert words(CeleryCrontab(minute=0, hour="*/2", day_of_week="mon", day_of_month="1-7")) == (
        "Whenever the clock shows minute 0, hour */2, day of week mon and day of month 1-7, on the clocks of UTC")
    assert words(CeleryCrontab()) == "Every minute, on the clocks of UTC"


@pytest.mark.parametrize(("seconds", "said"), [
    (1, "second"), (1.5, "1.5 seconds"), (60, "minute"), (90, "90 seconds"), (5_400, "90 minutes"), (86_400, "day"),
    (604_800, "7 days"), (0.000001, "0.000001 seconds"),
])
def test_lengths_are_told_in_units_that_leave_no_rest(seconds, said):
    assert span(timedelta(seconds=seconds)) == said
