"""Rule 6, the worker's side: what is kept, for how long, and what is told again."""

import pytest

from chrono_beat.core.deliveries import Hold, Settlement
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.recovery import Recorded
from chrono_beat.services import unrecorded as module
from chrono_beat.services.unrecorded import Outcomes


class Queue:
    """A lane that answers as a test says, and remembers what it was told."""

    def __init__(self):
        self.generation, self.done, self.gone, self.word = "1", [], [], "done"
        self.asked, self.told = [], []

    def recorded(self, lane, generation, holds):
        self.asked.append((generation, [hold.execution_id for hold in holds]))
        if generation != self.generation:
            return Recorded(self.generation, [], [])
        ids = {hold.execution_id for hold in holds}
        return Recorded(self.generation, [i for i in self.done if i in ids], [i for i in self.gone if i in ids])

    def settle(self, lane, worker, settlements):
        self.told += [settlement.hold.execution_id for settlement in settlements]
        return [self.word] * len(settlements)


def settled(number, result="succeeded", token="1.1", **detail):
    return Settlement(Hold(f"e{number}", token), result, detail)


@pytest.fixture
def queue():
    return Queue()


@pytest.fixture
def kept(queue):
    """A buffer that knows the lane's generation."""
    buffer = Outcomes([0])
    buffer.add(0, settled(0))
    buffer.settle_again(queue, 0, "w")
    queue.done = ["e0"]
    buffer.settle_again(queue, 0, "w")
    assert len(buffer) == 0
    queue.told.clear()
    queue.asked.clear()
    return buffer


def test_rule06_what_is_recorded_is_let_go_and_the_rest_is_kept(kept, queue):
    for number in (1, 2, 3):
        kept.add(0, settled(number))
    queue.done = ["e2"]

    kept.settle_again(queue, 0, "w")

    assert queue.asked == [("1", ["e1", "e2", "e3"])]
    assert queue.told == []
    assert len(kept) == 2


def test_rule06_under_a_new_generation_all_of_it_is_told_again_and_kept(kept, queue):
    for number in (1, 2):
        kept.add(0, settled(number))
    queue.generation, queue.word = "2", "settled"

    kept.settle_again(queue, 0, "w")
    kept.settle_again(queue, 0, "w")

    assert queue.told == ["e1", "e2"]
    assert [generation for generation, _ in queue.asked] == ["1", "2"]
    assert len(kept) == 2


def test_an_outcome_that_vanished_is_told_again(kept, queue):
    kept.add(0, settled(1))
    kept.add(0, settled(2))
    queue.gone = ["e2"]

    kept.settle_again(queue, 0, "w")

    assert queue.told == ["e2"]


def test_what_is_refused_is_somebody_elses_by_now(kept, queue):
    kept.add(0, settled(1))
    queue.generation, queue.word = "2", "refused"

    kept.settle_again(queue, 0, "w")

    assert len(kept) == 0


def test_a_closed_lane_is_asked_again_later(kept, queue):
    kept.add(0, settled(1))
    queue.generation = ""

    kept.settle_again(queue, 0, "w")

    assert queue.told == [] and len(kept) == 1


def test_an_outage_while_telling_leaves_everything_to_be_told_again(kept, queue):
    kept.add(0, settled(1))
    queue.generation = "2"
    stock, queue.settle = queue.settle, lambda *args: (_ for _ in ()).throw(QueueUnavailable("away"))
    with pytest.raises(QueueUnavailable):
        kept.settle_again(queue, 0, "w")
    queue.settle = stock

    kept.settle_again(queue, 0, "w")

    assert queue.told == ["e1"]


def test_what_was_handed_back_has_not_ended(kept):
    kept.add(0, settled(1, "lost"))
    assert len(kept) == 0


def test_two_deliveries_of_one_execution_are_told_apart(kept, queue):
    kept.add(0, settled(1, token="1.1"))
    kept.add(0, settled(1, token="1.2"))

    kept.settle_again(queue, 0, "w")

    assert [ids for _, ids in queue.asked] == [["e1"], ["e1"]]


@pytest.mark.parametrize(("limit", "value", "left"), [
    ("MAX_KEPT", 3, 3), ("MAX_KEPT_BYTES", 4 * module.PLAIN_BYTES, 4), ("MAX_AGE_SECONDS", -1.0, 0),
])
def test_what_is_kept_is_bounded_and_the_oldest_go_first(kept, queue, monkeypatch, limit, value, left):
    monkeypatch.setattr(module, limit, value)
    for number in range(10):
        kept.add(0, settled(number))

    kept.settle_again(queue, 0, "w")

    assert len(kept) == left
    assert [ids for _, ids in queue.asked] == ([[f"e{n}" for n in range(10 - left, 10)]] if left else [])


def test_errors_count_by_their_length(kept, queue, monkeypatch):
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 8_000)
    for number in range(3):
        kept.add(0, settled(number, "failed", error={"type": "E", "message": "x", "traceback": "t" * 4_000}))

    kept.settle_again(queue, 0, "w")

    assert len(kept) == 1
