"""Tenants take turns in what is due: bounded waits, full batches, order within a tenant."""
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from chrono_beat.core.turns import Turns


def filled(**counts):
    turns = Turns(lambda entry: entry[0])
    for tenant, count in counts.items():
        turns.extend([(tenant, number) for number in range(count)])
    return turns


def test_one_entry_leaves_at_once_beside_twenty_thousand_of_another_tenant():
    turns = filled(a=20_000, b=1)

    assert ("b", 0) in turns.take(100)


def test_a_batch_is_shared_evenly_and_what_one_leaves_goes_to_the_others():
    batch = filled(a=1_000, b=1_000, c=5).take(100)

    assert [sum(entry[0] == tenant for entry in batch) for tenant in "abc"] == [48, 47, 5]


def test_a_tenant_that_stands_alone_gets_whole_batches():
    assert filled(a=250).take(100) == [("a", number) for number in range(100)]


def test_more_tenants_than_a_batch_holds_are_served_one_after_another():
    turns = filled(**{f"t{number}": 2 for number in range(250)})

    first, second, third = turns.take(100), turns.take(100), turns.take(100)

    assert len({tenant for tenant, _ in first + second}) == 200
    assert {tenant for tenant, _ in third[:50]}.isdisjoint(tenant for tenant, _ in first + second)


def test_what_is_put_back_is_taken_first_of_its_tenant():
    turns = filled(a=5, b=3, c=1)
    batch = turns.take(4)

    turns.put_back(batch)

    assert len(turns) == 9
    assert sorted(turns.take(4)) == sorted(batch)


STEPS = st.lists(st.one_of(
    st.tuples(st.just("add"), st.sampled_from("abcd"), st.integers(1, 30)),
    st.tuples(st.just("take"), st.integers(1, 12)),
    st.tuples(st.just("fail"), st.integers(1, 12)),
    st.tuples(st.just("drop"), st.integers(2, 5)),
), max_size=40)


@given(STEPS)
def test_inv08_every_course_keeps_order_within_a_tenant_full_batches_and_bounded_waits(steps):
    """What is taken is a full batch, in each tenant's order; nobody in line is passed over for longer than the bound."""
    turns, model, numbers = Turns(lambda entry: entry[0]), {}, iter(range(10_000))
    since: dict[str, int] = {}
    for step in steps:
        if step[0] == "add":
            entries = [(step[1], next(numbers)) for _ in range(step[2])]
            turns.extend(entries)
            model.setdefault(step[1], deque()).extend(entries)
        elif step[0] == "drop":
            model = {t: deque(e for e in q if e[1] % step[1]) for t, q in model.items()}
            turns.keep(lambda entry, step=step: bool(entry[1] % step[1]))
        else:
            waiting = {tenant for tenant, queue in model.items() if queue}
            batch = turns.take(step[1])
            assert len(batch) == min(step[1], sum(map(len, model.values())))
            if step[0] == "fail":
                turns.put_back(batch)
                continue
            for entry in batch:
                assert model[entry[0]].popleft() == entry
            for tenant in waiting:
                served = any(entry[0] == tenant for entry in batch)
                since[tenant] = 0 if served else since.get(tenant, 0) + step[1]
                assert since[tenant] < len("abcd")
        assert len(turns) == sum(map(len, model.values()))


def test_who_is_left_out_of_a_batch_keeps_turn_and_entries():
    turns = filled(a=10, b=2, c=2)

    assert {entry[0] for entry in turns.take(8, without=("a", "nobody"))} == {"b", "c"}
    assert len(turns) == turns.waiting("a") == 10 and turns.waiting("b") == 0
    assert turns.take(3) == [("a", 0), ("a", 1), ("a", 2)]
