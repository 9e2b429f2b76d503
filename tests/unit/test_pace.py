"""A flood rests while others have work, and only then."""
from chrono_beat.core.pace import FLOOD, OTHERS_COUNT_US, REST, Pace

MS = 1_000


def noted(pace, at_us, waiting, *tenants, took_us=8 * MS):
    pace.note(set(tenants), lambda tenant: waiting.get(tenant, 0), at_us, at_us + took_us)
    return at_us + took_us


def test_a_flood_rests_for_twice_as_long_as_its_batch_took_where_others_have_work():
    pace, waiting = Pace(), {"a": FLOOD + 1}

    ended = noted(pace, 0, waiting, "a", "b")

    assert pace.left_out(ended) == {"a"} and pace.rests_us(ended) == REST * 8 * MS
    assert pace.left_out(ended + REST * 8 * MS) == frozenset()
    noted(pace, ended, waiting, "b", took_us=MS)                       # others go meanwhile, and prolong nothing
    assert pace.rests_us(ended + MS) == REST * 8 * MS - MS


def test_one_that_is_alone_never_rests():
    pace, waiting = Pace(), {"a": 10 * FLOOD}

    ended = noted(pace, 0, waiting, "a")
    assert pace.left_out(ended) == frozenset()
    ended = noted(pace, ended, waiting, "a", "b")
    assert pace.left_out(ended) == {"a"}
    later = ended + OTHERS_COUNT_US
    noted(pace, later, waiting, "a")
    assert pace.left_out(later + 8 * MS) == frozenset() and pace.rests_us(later + 8 * MS) == 0


def test_many_tenants_with_little_each_are_no_flood():
    pace = Pace()

    ended = noted(pace, 0, {f"t{n}": 100 for n in range(1_000)}, *(f"t{n}" for n in range(100)))

    assert pace.left_out(ended) == frozenset()


def test_what_is_left_of_a_flood_goes_without_a_pause():
    pace = Pace()
    ended = noted(pace, 0, {"a": FLOOD + 50}, "a", "b")

    ended = noted(pace, ended + REST * 8 * MS, {"a": FLOOD - 50}, "a")

    assert pace.left_out(ended) == frozenset()
