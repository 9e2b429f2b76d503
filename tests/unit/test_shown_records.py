"""Records as logs and reports of errors write them: whose work it is, and nothing of what users gave it."""
import pytest

from chrono_beat.core.deliveries import RAN_RETRY, Delivery, Outcome
from chrono_beat.core.eta import EtaTask
from chrono_beat.core.plain import PlainTask
from chrono_beat.core.records import Content, NewAttempt, PublishItem, ScheduledExecution

SECRET = '["card 4111"]'
CONTENT = Content("acme", "nightly", "shop.pay", SECRET, SECRET, SECRET, "", 5, None, None, None, "forbid", "occurrence")
RECORDS = (
    CONTENT,
    ScheduledExecution("job:1:1", "acme's job", 1, 1, 1, 1, 1, 0, "schedule", 1, CONTENT, options=SECRET),
    PublishItem("job:1:1", "acme's job", "acme", 1, 1, "schedule", "chrono", 5, 1, None, "forbid", SECRET.encode()),
    NewAttempt("acme:1:1", 2, 1, 1, SECRET, SECRET),
    Delivery("job:1:1", "acme's job", "acme", "chrono", "1.7", 1, 1, 1, SECRET.encode(), SECRET.encode()),
    Outcome("1-0", 0, 1, RAN_RETRY, "job:1:1", "acme's job", "acme", 1, "1.7", "w", 1, 1,
            {"runtime_ms": 3, "retry": {"args": SECRET, "kwargs": SECRET}}),
    PlainTask("plain:1:2", "acme", "chrono", 5, SECRET.encode()),
    EtaTask("id", "acme", 1, "shop.pay", SECRET, SECRET, SECRET, 0),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_written_without_arguments_headers_and_messages(record):
    shown = f"{record!r} {[record]}"

    assert "4111" not in shown and "…" in shown
    assert shown.startswith(f"{type(record).__name__}(") and "acme" in shown


def test_the_rest_of_an_outcome_is_written_for_whoever_looks_for_a_fault():
    assert "'runtime_ms': 3" in repr(RECORDS[5])
    assert repr(NewAttempt("acme:1:1", 2, 1, 1)).endswith("retries=1, due_us=1, args=None, kwargs=None)")
