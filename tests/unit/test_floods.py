"""Whose rows a look leaves out, and when."""
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from chrono_beat.core.floods import Floods

EVERY = 1_000
LIMIT = 8


def test_who_takes_more_than_a_quarter_of_a_full_batch_is_left_out_once_in_a_while():
    floods = Floods(EVERY, LIMIT)
    assert floods.left_out(0) == []
    floods.note([["a"] * 6 + ["b"] * 2], all_of_them=True)

    assert [floods.left_out(now) for now in (0, 1, EVERY - 1, EVERY, EVERY + 1)] == [["a"], [], [], ["a"], []]


def test_a_batch_that_is_not_full_is_no_flood():
    floods = Floods(EVERY, LIMIT)
    floods.note([["a"] * 7, ["a"] * 7], all_of_them=True)
    assert floods.left_out(0) == []


def test_a_flood_is_over_once_a_look_at_everybody_finds_less_than_a_batch():
    floods = Floods(EVERY, LIMIT)
    floods.note([["a"] * 8, []], all_of_them=True)
    floods.note([["b"], []], all_of_them=False)
    assert floods.left_out(0) == ["a"]
    floods.note([["b"], []], all_of_them=True)
    assert floods.left_out(EVERY) == []


@given(st.lists(st.sampled_from("aaaaaabbbc"), min_size=20, max_size=200), st.data())
def test_inv08_whoever_has_little_is_found_after_as_many_looks_past_floods_as_there_are_floods(queue, data):
    """A scan in the order of due times, without the tenants that flood: no row stays behind more than a quarter of a batch of
    its own tenant's for longer."""
    floods = Floods(EVERY, LIMIT)
    waits = Counter()
    now = 0
    while queue:
        without = floods.left_out(now)
        found = [tenant for tenant in queue if tenant not in without][:LIMIT]
        for tenant in found:
            queue.remove(tenant)
        floods.note([found], all_of_them=not without)
        if without:
            for tenant in set(queue) - set(found) - set(without):
                waits[tenant] += 1
        elif not found:
            raise AssertionError("a look at everybody found nothing, and something is there")
        now += data.draw(st.integers(1, EVERY))
    assert all(count <= 3 for count in waits.values()), waits
