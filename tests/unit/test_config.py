"""Settings: what is refused, with which words, and that nothing in them is idle."""
import re
from dataclasses import fields
from pathlib import Path

import pytest

from chrono_beat.core import callback
from chrono_beat.core.config import Config, find_problems, load
from chrono_beat.core.errors import MisconfiguredError

ROOT = Path(__file__).resolve().parents[2]
SECRET = callback.encode_secret(b"x" * 32)


def test_the_defaults_can_work():
    assert find_problems({}) == []
    assert load({}) == Config()


@pytest.mark.parametrize(("settings", "field", "words"), [
    ({"LEASE_TLL": 60}, "LEASE_TLL", "did you mean LEASE_TTL"),
    ({"lease_ttl": 60}, "lease_ttl", "did you mean LEASE_TTL"),
    ({"ZZZ": 1}, "ZZZ", "unknown setting; known are"),
    ({"RENEW_EVERY": 60}, "RENEW_EVERY", "at most 30"),
    ({"RENEW_EVERY": 20, "LEASE_TTL": 30}, "RENEW_EVERY", "at most 15"),
    ({"PARTITION_LEASE_TTL": 1.5}, "PARTITION_RENEW_EVERY", "at most 0.75"),
    ({"PARTITIONS": 0}, "PARTITIONS", "at least 1"),
    ({"PARTITIONS": 5000}, "PARTITIONS", "at most 4096"),
    ({"PARTITIONS": True}, "PARTITIONS", "whole number"),
    ({"PARTITIONS": "64"}, "PARTITIONS", "whole number"),
    ({"HORIZON": float("nan")}, "HORIZON", "at least 1"),
    ({"HORIZON": float("inf")}, "HORIZON", "at most 600"),
    ({"REDIS_URL": ""}, "REDIS_URL", "not empty"),
    ({"REDIS_URL": f"amqp://:{SECRET}@host/"}, "REDIS_URL", "redis://, rediss://, unix://"),
    ({"REDIS_URL": f"redis://:pass/{SECRET}@host/"}, "REDIS_URL", "percent-encoded"),
    ({"ALLOWED_TASKS": []}, "ALLOWED_TASKS", "one or more"),
    ({"ALLOWED_TASKS": "shop.*"}, "ALLOWED_TASKS", "list"),
    ({"ALERT_URL": 5}, "ALERT_URL", "text"),
    ({"ALERT_URL": "https://ops.example/"}, "ALERT_SECRETS", "is signed"),
    ({"ALERT_SECRETS": ["whsec_c2hvcnQ="]}, "ALERT_SECRETS", "24 random bytes"),
    ({"ALERT_SECRETS": [SECRET.removeprefix("whsec_")]}, "ALERT_SECRETS", "whsec_"),
    ({"ALERT_SECRETS": [SECRET[:-2]]}, "ALERT_SECRETS", "base64"),
    ({"ALERT_URL": "https://127.0.0.1/", "ALERT_SECRETS": [SECRET]}, "ALERT_URL", "HTTP_ALLOWED_ADDRESSES"),
    ({"ALERT_URL": "http://ops.example/", "ALERT_SECRETS": [SECRET], "HTTP_ALLOWED_SCHEMES": ["https"]}, "ALERT_URL",
     "begin with https://"),
])
def test_what_cannot_work_is_named_with_the_mend(settings, field, words):
    problems = find_problems(settings)

    assert [problem.field for problem in problems] == [field]
    assert words in problems[0].message
    assert SECRET.removeprefix("whsec_") not in problems[0].message
    with pytest.raises(MisconfiguredError, match=re.escape(field)):
        load(settings)


def test_urls_with_their_secrets_can_work_and_are_not_shown():
    config = load({"ALERT_URL": "https://ops.example/?token=s3cret", "ALERT_SECRETS": [SECRET],
                   "REDIS_URL": "rediss://user:s3cret@redis.example:6380/0?ssl_cert_reqs=required"})

    assert config.alert_secrets == (SECRET,) and "s3cret" in config.redis_url
    assert SECRET not in repr(config) and "s3cret" not in repr(config)


def test_everything_wrong_is_told_at_once():
    assert {problem.field for problem in find_problems({"LANES": 0, "HORIZONT": 5, "REAP_CAP": "many"})} == {
        "LANES", "HORIZONT", "REAP_CAP",
    }


def test_no_setting_is_idle():
    """A setting that nothing reads is a promise that nobody keeps."""
    code = "\n".join(
        path.read_text() for package in ("chrono_beat", "chrono_beat_django") for path in (ROOT / package).rglob("*.py")
        if path.name != "config.py"
    )

    assert [field.name for field in fields(Config) if not re.search(rf"\.{field.name}\b", code)] == []
