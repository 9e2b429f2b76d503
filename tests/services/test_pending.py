"""What waits between the database and Redis: bunches, and what stands in whose place."""
from chrono_beat.core.records import PublishItem
from chrono_beat.services.pending import MAX_HUSKS, Entry, Pending


def entry(key, tenant="a", due_us=1_000_000, version=1, partition=0, lane=0):
    item = PublishItem(str(key), "", tenant, version, 1, "schedule", "default", 5, due_us, None, "allow", b"{}")
    return Entry(item, partition, epoch=1, lane=lane, generation=1)


def keys(entries):
    return [each.item.execution_id for each in entries]


def test_inv08_a_flood_leaves_the_wheel_as_one_so_the_next_due_of_others_waits_for_one_step():
    pending = Pending(1)
    pending.add(entry(key) for key in range(50_000))
    pending.add([entry("next", "b", due_us=1_000_001)])

    assert not pending.advance(1_000_001, 1)
    pending.advance(1_000_001, 1)

    assert pending.due_count() == len(pending) == 50_001
    assert "next" in keys(pending.take(0, 10))


def test_what_is_due_at_one_instant_goes_to_its_lane_and_in_the_order_of_adding():
    pending = Pending(2)
    pending.add([entry(1), entry(2, lane=1), entry(3), entry(4, due_us=999_999)])

    assert pending.advance(1_000_000, 10)

    assert pending.lanes_due() == [0, 1]
    assert (keys(pending.take(0, 10)), keys(pending.take(1, 10))) == (["4", "1", "3"], ["2"])


def test_an_entry_stands_in_place_of_the_older_one_even_where_that_is_due():
    pending = Pending(1)
    pending.add([entry(1), entry(2)])
    pending.advance(1_000_000, 10)
    pending.add([entry(1, version=2, due_us=3_000_000), entry(2, version=2)])
    pending.advance(1_000_000, 10)

    first = pending.take(0, 10)
    pending.advance(3_000_000, 10)

    assert [(each.item.execution_id, each.item.version) for each in first + pending.take(0, 10)] == [("2", 2), ("1", 2)]
    assert len(pending) == pending.due_count() == 0


def test_a_batch_full_of_replaced_entries_is_passed_over():
    pending = Pending(1)
    pending.add(entry(key) for key in range(20))
    pending.advance(1_000_000, 10)
    pending.add(entry(key, due_us=5_000_000) for key in range(19))

    assert keys(pending.take(0, 5)) == ["19"]


def test_replaced_entries_do_not_pile_up():
    pending = Pending(1)
    pending.add([entry(0)])
    for version in range(2, 3 * MAX_HUSKS):
        pending.add([entry(0, version=version)])
    pending.advance(1_000_000, 10)

    assert pending.due_count() <= MAX_HUSKS + 1
    assert [each.item.version for each in pending.take(0, 10 * MAX_HUSKS)] == [3 * MAX_HUSKS - 1]


def test_what_is_put_back_comes_first_but_gives_way_to_what_is_newer():
    pending = Pending(1)
    pending.add(entry(key) for key in range(4))
    pending.advance(1_000_000, 10)
    taken = pending.take(0, 2)
    pending.add([entry(1, version=2, due_us=2_000_000)])

    pending.put_back(0, taken, pending.edition)
    pending.advance(2_000_000, 10)

    assert [(each.item.execution_id, each.item.version) for each in pending.take(0, 10)] == [
        ("0", 1), ("2", 1), ("3", 1), ("1", 2)]


def test_what_was_taken_before_a_clearing_is_not_put_back():
    pending = Pending(1)
    pending.add([entry(1), entry(2, due_us=9_000_000)])
    pending.advance(1_000_000, 10)
    edition, taken = pending.edition, pending.take(0, 10)

    assert pending.clear() == 1
    pending.put_back(0, taken, edition)

    assert len(pending) == pending.due_count() == 0
    assert pending.next_due_us() is None


def test_a_partition_is_let_go_of_wherever_its_entries_are():
    pending = Pending(1)
    pending.add([entry(1), entry(2, partition=3), entry(3, partition=3, due_us=2_000_000), entry(4, due_us=2_000_000)])
    pending.add([entry(5, partition=3, due_us=1_500_000)])
    pending.advance(1_000_000, 10)

    assert pending.drop([3]) == 3
    pending.advance(2_000_000, 10)

    assert keys(pending.take(0, 10)) == ["1", "4"]
