"""Partitions are shared evenly, by the set of members alone, and few move when it changes."""
from __future__ import annotations

import random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chrono_beat.core.assignment import assign, owned_by


def hosts(count: int, *, fleet: int = 0) -> list[str]:
    return [f"fleet-{fleet}-host-{number}" for number in range(count)]


def owners(partitions: int, members: list[str]) -> dict[int, str]:
    return {partition: member for member, share in assign(partitions, members).items() for partition in share}


def moved(partitions: int, before: list[str], after: list[str]) -> int:
    was, became = owners(partitions, before), owners(partitions, after)
    return sum(was[partition] != became[partition] for partition in range(partitions))


@settings(max_examples=50, deadline=None)
@given(
    partitions=st.integers(1, 130),
    members=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=12, unique=True),
    shuffled=st.randoms(use_true_random=False),
)
def test_every_partition_has_one_owner_shares_are_even_and_order_does_not_matter(
    partitions: int, members: list[str], shuffled: random.Random
) -> None:
    shares = assign(partitions, members)

    assert sorted(partition for share in shares.values() for partition in share) == list(range(partitions))
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    assert all(share == sorted(share) for share in shares.values())
    in_another_order = list(members)
    shuffled.shuffle(in_another_order)
    assert assign(partitions, in_another_order) == shares


def test_the_answer_is_the_same_in_every_process_and_release() -> None:
    """Members of two releases work side by side during a deployment; a changed hash would make them fight."""
    assert assign(8, ["a", "b", "c"]) == {"a": [0, 5], "b": [1, 3, 6], "c": [2, 4, 7]}


def test_a_member_gets_the_share_that_assign_gives_it() -> None:
    members = hosts(3)

    assert owned_by(members[1], members, 64) == assign(64, members)[members[1]]


def test_a_stranger_owns_nothing() -> None:
    assert owned_by("stranger", hosts(3), 64) == []
    assert owned_by("stranger", [], 64) == []


def test_a_lone_member_owns_everything() -> None:
    assert owned_by("alone", ["alone"], 64) == list(range(64))


def test_more_members_than_partitions_leave_some_without() -> None:
    sizes = [len(share) for share in assign(3, hosts(5)).values()]

    assert sorted(sizes) == [0, 0, 1, 1, 1]


def test_a_name_given_twice_counts_once() -> None:
    assert assign(8, ["a", "b", "a"]) == assign(8, ["a", "b"])


def test_changing_an_answer_does_not_change_the_next_one() -> None:
    assign(8, ["a", "b"])["a"].clear()

    assert len(owned_by("a", ["a", "b"], 8)) == 4


def test_no_partitions_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 partition"):
        assign(0, ["a"])


@pytest.mark.parametrize(("members", "bound"), [(1, 1.0), (2, 1.25), (3, 1.3), (5, 1.5), (8, 1.7), (13, 2.0)])
def test_a_change_of_members_moves_little_more_than_it_must(members: int, bound: float) -> None:
    """A joining member must get its share; evenness costs some moves on top. Leaving is the same change backwards."""
    must_move = 64 / (members + 1)

    ratios = [moved(64, hosts(members, fleet=n), hosts(members + 1, fleet=n)) / must_move for n in range(15)]

    assert median(ratios) <= bound


def test_most_survivors_keep_what_they_had_when_one_of_three_leaves() -> None:
    stay = sum(
        owners(64, hosts(3, fleet=n))[partition] == owners(64, hosts(2, fleet=n))[partition]
        for n in range(15)
        for partition in range(64)
    )

    assert stay / (15 * 64) > 0.6
