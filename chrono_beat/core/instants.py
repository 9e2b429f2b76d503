"""From wall minutes to instants: what a cron schedule does when its zone's clock changes.

**Rule.** A schedule in a zone is a set of instants. An ordinary named minute is one of them, at second 0 of the wall
clock. When the clock goes back a wall minute comes twice; when it goes forward some never come. Then it matters

* whether the schedule *ticks*: it takes all 24 hours, or several minutes from an open-ended item (``*/15``);
* whether it *names hours*: it leaves some hour out.

=========  ========================  ================  ====================
kind       example                   minute comes      minute never comes
                                     twice
=========  ========================  ================  ====================
hourly     ``5,35 * * * *``          runs both times   nothing is made up
window     ``*/15 1-3 * * *``        runs both times   made up once
fixed      ``30 1 * * *``            runs first time   made up once
=========  ========================  ================  ====================

Made up once: all named minutes of one gap become a single run, at the first whole wall minute after it. A date that the
gap swallows whole is like 30 February: nothing is made up for it.

**Theory.** Time is walked by stretches of constant offset (`chrono_beat.core.zones`), because the order of wall times
is the order of instants only inside one. In a stretch the instants are the named wall minutes that it *owns*, less its
offset: for a fixed schedule after a step back, only those that the earlier stretch had not passed. A step forward adds
the made-up run at its start.

**Worked example.** ``30 2 * * *`` in New York on 2026-03-08. At 07:00Z the offset goes from -5 h to -4 h, so the
walls 02:00 to 03:00 are a gap. 02:30 lies in it, so the new stretch opens with a run at 03:00 EDT, 07:00Z.

**Bound.** A search leaps over stretches in which nothing is named: to a day before the next named wall minute, since no
zone is further than a day from UTC. Forty years of waiting cost a handful of stretches. A count costs by years: it
counts wall minutes by months and puts right what each clock change adds or takes away. Far from today all years of one
length and first weekday are alike, so each kind of year is counted once.

**Weakness.** Instants are known from 0001-01-03 to the end of 9998; outside there are none.
"""
from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator
from datetime import date
from typing import NamedTuple

from chrono_beat.core.calendar import DAY_SECONDS, Fields, WallCalendar
from chrono_beat.core.zones import FIRST_CHANGE_YEAR, FIRST_SECOND, RULES_YEAR, Change, Stretch, Timeline

END_SECOND = (date(9999, 1, 1).toordinal() - 1) * DAY_SECONDS
"""The first UTC second (since 0001-01-01) that no run is looked for at: the beginning of 9999."""

CYCLE_YEARS = 400
"""Years after which the calendar repeats, weekdays included."""

FURTHEST_SECONDS = DAY_SECONDS
"""No zone is further than this from UTC; Python's datetime guarantees it."""


class Telling(NamedTuple):
    """How an instant came about.

    `kind` is ``"ordinary"``, ``"moved"`` (made up for skipped minutes), ``"first"`` or ``"second"`` (its wall minute
    comes twice); `change` is the clock change that made it so.
    """

    kind: str
    change: Change | None


class Instants:
    """The instants of *fields* on the clock of *timeline*; all times are UTC seconds since 0001-01-01."""

    def __init__(self, fields: Fields, timeline: Timeline) -> None:
        self.fields = fields
        self.timeline = timeline
        self.calendar = WallCalendar(fields)
        self._years: dict[tuple[bool, int, int], int] = {}  # at most 28 entries
        self._cycles: dict[bool, int] = {}

    def first_from(self, utc: int) -> int | None:
        """Return the first instant at or after *utc*, None if there is none."""
        utc = max(utc, FIRST_SECOND)
        while utc < END_SECOND:
            stretch = self.timeline.stretch_at(utc)
            found = self._first_in(stretch, utc)
            if found is not None:
                return found if found < END_SECOND else None
            utc = self._leap_forward(stretch)
        return None

    def last_before(self, utc: int) -> int | None:
        """Return the last instant before *utc*, None if there is none."""
        utc = min(utc, END_SECOND)
        while utc > FIRST_SECOND:
            stretch = self.timeline.stretch_at(utc - 1)
            found = self._last_in(stretch, utc)
            if found is not None:
                return found if found >= FIRST_SECOND else None
            utc = self._leap_back(stretch)
        return None

    def count(self, start: int, end: int, limit: int) -> int:
        """Count the instants in [start, end); answers ``limit + 1`` as soon as there are more than *limit*."""
        start, end = max(start, FIRST_SECOND), min(end, END_SECOND)
        total = 0
        while start < end and total <= limit:
            year = date.fromordinal(start // DAY_SECONDS + 1).year
            stop = min(end, _opening(year + 1))
            if start > _opening(year) or end < _opening(year + 1) or FIRST_CHANGE_YEAR <= year < RULES_YEAR:
                total += self._count(start, stop)
            elif year + CYCLE_YEARS < 10_000 and self._alike(year, end):
                stop = _opening(year + CYCLE_YEARS)
                total += self._count_cycle(year)
            else:
                total += self._count_year(year)
            start = stop
        return min(total, limit + 1)

    def within(self, start: int, end: int) -> Iterator[int]:
        """Return the instants in [start, end), in order; for many in a short span this is the cheapest way."""
        utc, end = max(start, FIRST_SECOND), min(end, END_SECOND)
        while utc < end:
            stretch = self.timeline.stretch_at(utc)
            stop = min(end, stretch.end)
            owned = max(utc + stretch.offset, self._owned_from(stretch))
            found = [wall - stretch.offset for wall in self.calendar.within(owned, stop + stretch.offset)]
            made_up = self._made_up_in(stretch)
            if made_up is not None and utc <= made_up < stop and made_up not in found:
                found = sorted([made_up, *found])
            yield from found
            utc = stretch.end

    def tell(self, utc: int) -> Telling:
        """Tell how the instant *utc*, one of the set, came about."""
        stretch = self.timeline.stretch_at(utc)
        wall = utc + stretch.offset
        if stretch.before is not None:
            change = Change(stretch.start, stretch.before, stretch.offset)
            if self.made_up(change) == utc:
                return Telling("moved", change)
            if wall < stretch.start + stretch.before:
                return Telling("second", change)
        for change in self.timeline.changes_between(utc, utc + FURTHEST_SECONDS):
            if change.at + change.after <= wall < change.at + change.before:
                return Telling("first", change)
        return Telling("ordinary", None)

    def touched_by(self, change: Change) -> bool:
        """Tell whether *change* skips or repeats a minute that a schedule which names hours has named."""
        low, high = sorted((change.at + change.before, change.at + change.after))
        return self.fields.names_hours and self.calendar.count(low, high) > 0

    # One stretch.

    def _owned_from(self, stretch: Stretch) -> int:
        """Return the wall time from which the stretch owns named minutes."""
        opens = stretch.start + stretch.offset
        if stretch.before is None or self.fields.ticks:
            return opens
        return max(opens, stretch.start + stretch.before)

    def made_up(self, change: Change) -> int | None:
        """Return the run that is made up at a gap's end, None if the change skips nothing that counts."""
        gap, end = change.at + change.before, change.at + change.after
        if not self.fields.names_hours or self.calendar.count(gap, end) <= 0:
            return None
        wall = self.calendar.next(gap)
        while wall is not None and wall < end:
            midnight = wall // DAY_SECONDS * DAY_SECONDS
            if midnight < gap or midnight + DAY_SECONDS > end:
                return -(-end // 60) * 60 - change.after
            wall = self.calendar.next(midnight + DAY_SECONDS)  # this date does not exist at all
        return None

    def _made_up_in(self, stretch: Stretch) -> int | None:
        if stretch.before is None:
            return None
        return self.made_up(Change(stretch.start, stretch.before, stretch.offset))

    def _first_in(self, stretch: Stretch, utc: int) -> int | None:
        made_up = self._made_up_in(stretch)
        wall = self.calendar.next(max(utc + stretch.offset, self._owned_from(stretch)))
        named = wall - stretch.offset if wall is not None and wall - stretch.offset < stretch.end else None
        if made_up is not None and made_up >= utc and (named is None or made_up < named):
            return made_up
        return named

    def _last_in(self, stretch: Stretch, utc: int) -> int | None:
        wall = self.calendar.previous(min(utc, stretch.end) + stretch.offset)
        if wall is not None and wall >= self._owned_from(stretch):
            return wall - stretch.offset  # a made-up run opens its stretch, so it is not later than this
        made_up = self._made_up_in(stretch)
        return made_up if made_up is not None and made_up < utc else None

    # From stretch to stretch.

    def _leap_forward(self, stretch: Stretch) -> int:
        """Return where the search goes on after *stretch*, without passing over an instant.

        The wall clock of a later stretch shows at least `edge - 2 * FURTHEST_SECONDS`, so if no minute is named from
        there to `wall`, no instant comes before `wall - FURTHEST_SECONDS`.
        """
        edge = stretch.end + stretch.offset
        wall = self.calendar.next(edge - 2 * FURTHEST_SECONDS)
        if wall is None:
            return END_SECOND
        return max(stretch.end, wall - FURTHEST_SECONDS)

    def _leap_back(self, stretch: Stretch) -> int:
        edge = stretch.start + stretch.offset
        wall = self.calendar.previous(edge + 2 * FURTHEST_SECONDS)
        if wall is None:
            return FIRST_SECOND
        # A made-up run stands up to a minute behind the change, hence the second minute.
        return min(stretch.start, wall + FURTHEST_SECONDS + 120)

    # Counting.

    def _alike(self, year: int, end: int) -> bool:
        """Tell whether 400 years from *year* on are wanted, all before the first change or in the time of rules."""
        last = year + CYCLE_YEARS
        return end >= _opening(last) and (last <= FIRST_CHANGE_YEAR or year >= RULES_YEAR)

    def _count_cycle(self, year: int) -> int:
        """Count the instants of 400 years, after which weekdays, dates and rules begin anew."""
        early = year < FIRST_CHANGE_YEAR
        found = self._cycles.get(early)
        if found is None:
            found = self._cycles[early] = sum(map(self._count_year, range(year, year + CYCLE_YEARS)))
        return found

    def _count_year(self, year: int) -> int:
        """Count the instants of a whole UTC year in which offsets follow a rule, or do not change at all.

        Rules and day fields look at nothing but the length of the year and the weekday it begins with.
        """
        monday_based, _ = monthrange(year, 1)
        key = (year < FIRST_CHANGE_YEAR, _opening(year + 1) - _opening(year), monday_based)
        found = self._years.get(key)
        if found is None:
            found = self._years[key] = self._count(_opening(year), _opening(year + 1))
        return found

    def _count(self, start: int, end: int) -> int:
        """Count by the wall clock, as if it ran evenly from *start* to *end*, then put every clock change right."""
        total = self.calendar.count(self._wall_reached(start), self._wall_reached(end))
        for change in self.timeline.changes_between(start - 60, end):
            old, new = change.at + change.before, change.at + change.after
            named = self.calendar.count(old, new)  # below zero if the clock goes back
            if named and change.at > start and (named > 0 or self.fields.ticks):
                total -= named
            made_up = self.made_up(change) if named > 0 else None
            if made_up is not None and start <= made_up < end and not self.calendar.names(made_up + change.after):
                total += 1
        return total

    def _wall_reached(self, utc: int) -> int:
        """Return the wall time up to which minutes have had their turn just before *utc*."""
        stretch = self.timeline.stretch_at(utc)
        return max(utc + stretch.offset, self._owned_from(stretch))


def _opening(year: int) -> int:
    """Return the first UTC second of a year."""
    return (date(year, 1, 1).toordinal() - 1) * DAY_SECONDS
