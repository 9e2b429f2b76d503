"""The choice of tenants in a draw, without any store around it."""
from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chrono_beat.core.fairness import DEFAULT_MAX_RUNNING, DEFAULT_WEIGHT, FairLine, draw


class Pool:
    """Tenants with a number of executions waiting, a weight and a cap."""

    def __init__(self, **tenants):
        self.line = FairLine()
        self.waiting, self.running = Counter(), Counter()
        self.limits = {}
        for name, (waiting, weight, cap) in tenants.items():
            self.limits[name] = (weight, cap)
            self.arrive(name, waiting)

    def arrive(self, tenant, count=1):
        self.waiting[tenant] += count
        if count:
            self.line.enter(tenant)

    def room(self, tenant):
        weight, cap = self.limits[tenant]
        return weight, cap - self.running[tenant]

    def take(self, tenant):
        if not self.waiting[tenant]:
            return None
        self.waiting[tenant] -= 1
        self.running[tenant] += 1
        return tenant

    def draw(self, credit):
        return "".join(draw(self.line, credit, self.room, self.take))

    def settle(self, tenant):
        self.running[tenant] -= 1
        self.line.bring_back(tenant)


@pytest.mark.parametrize(("tenants", "credit", "expected"), [
    ({}, 5, ""),
    ({"a": (2, 1, 9)}, 5, "aa"),
    ({"a": (9, 1, 9), "b": (9, 1, 9)}, 6, "ababab"),
    ({"a": (9, 3, 9), "b": (9, 1, 9)}, 8, "abaaabaa"),
    ({"a": (9, 1, 9), "b": (9, 2, 9)}, 6, "abbabb"),
    ({"a": (9, 1, 2), "b": (9, 1, 9)}, 6, "ababbb"),
    ({"a": (9, 1, 0), "b": (2, 1, 9)}, 6, "bb"),
    ({"b": (1, 1, 9), "a": (1, 1, 9), "c": (1, 1, 9)}, 6, "abc"),
])
def test_turns(tenants, credit, expected):
    assert Pool(**tenants).draw(credit) == expected


@pytest.mark.parametrize("credit", [1, 3, 100])
def test_saturated_weights_of_three_to_one_give_three_quarters(credit):
    pool = Pool(a=(10_000, 3, 10**6), b=(10_000, 1, 10**6))
    drawn = "".join(pool.draw(credit) for _ in range(1200 // credit))
    assert abs(drawn.count("a") / len(drawn) - 0.75) <= 0.02


def test_who_was_idle_has_saved_no_credit():
    pool = Pool(a=(1000, 1, 10**6), b=(0, 1, 10**6))
    pool.draw(500)

    pool.arrive("b", 1000)

    assert abs(pool.draw(100).count("b") - 50) <= 1


def test_who_drains_and_returns_at_once_gains_nothing():
    pool = Pool(a=(1000, 1, 10**6), b=(0, 1, 10**6))
    drawn = ""
    for _ in range(200):
        pool.arrive("b")
        drawn += pool.draw(1)
    assert abs(drawn.count("b") - 100) <= 1


def test_who_was_set_aside_has_saved_no_credit():
    pool = Pool(a=(1000, 1, 10**6), b=(1000, 1, 1))
    pool.draw(200)
    pool.limits["b"] = (1, 10**6)
    pool.settle("b")

    assert abs(pool.draw(100).count("b") - 50) <= 1


def test_a_capped_tenant_is_not_looked_at_until_a_slot_is_free():
    pool = Pool(a=(10, 1, 1), b=(10, 1, 10**6))
    pool.draw(4)
    looked = []
    draw(pool.line, 4, lambda tenant: (looked.append(tenant), pool.room(tenant))[1], pool.take)

    assert "a" not in looked
    pool.settle("a")
    assert "a" in pool.draw(2)


def test_tenants_without_work_cost_nothing():
    line = FairLine()
    for n in range(100):
        line.enter(f"t{n}")
    assert draw(line, 5, lambda _: (1, 1), lambda _: None) == []
    assert (line.ready, line.capped, line.floor) == ({}, {}, 0.0)


@given(
    weights=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    credits=st.lists(st.integers(1, 20), min_size=1, max_size=40),
)
def test_any_two_with_work_differ_from_their_shares_by_less_than_one_each(weights, credits):
    names = "abcde"[:len(weights)]
    pool = Pool(**{name: (10**6, weight, 10**6) for name, weight in zip(names, weights, strict=True)})
    drawn = Counter()
    for credit in credits:
        drawn.update(pool.draw(credit))
    for one, its_weight in zip(names, weights, strict=True):
        for other, other_weight in zip(names, weights, strict=True):
            apart = drawn[one] / its_weight - drawn[other] / other_weight
            assert abs(apart) <= max(1 / its_weight, 1 / other_weight) + 1e-9


@given(st.lists(st.one_of(
    st.tuples(st.just("arrive"), st.sampled_from("abc")),
    st.tuples(st.just("draw"), st.integers(1, 5)),
    st.tuples(st.just("settle"), st.sampled_from("abc")),
), max_size=80))
def test_no_work_is_left_lying_where_there_is_room_and_no_cap_is_passed(course):
    pool = Pool(a=(0, 1, 1), b=(0, 2, 3), c=(0, 3, 10**6))
    for name, what in course:
        if name == "arrive":
            pool.arrive(what)
        elif name == "settle":
            if pool.running[what]:
                pool.settle(what)
        elif len(pool.draw(what)) < what:
            assert not [t for t in "abc" if pool.waiting[t] and pool.room(t)[1] > 0]
        assert all(pool.running[t] <= pool.limits[t][1] for t in "abc")


def test_the_defaults():
    assert (DEFAULT_WEIGHT, DEFAULT_MAX_RUNNING) == (1, 20)
