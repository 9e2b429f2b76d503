"""HTTP targets, as far as nothing is sent: what may be called, what is shown of it, what answers mean, who signs."""
import pickle
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from chrono_beat.core import callback
from chrono_beat.core.addresses import first_wrong, wrong_address, wrong_network
from chrono_beat.core.callback import MASK, HttpTarget, HttpTargetError

NOW = datetime(2026, 1, 2, 9, tzinfo=UTC)
URL = "https://shop.example/hooks/report"


def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(("address", "what"), [
    ("127.0.0.1", "loopback"), ("127.8.9.10", "loopback"), ("::1", "loopback"), ("0.0.0.0", "this host"),
    ("::", "this host"), ("10.0.0.8", "private"), ("172.31.255.255", "private"), ("192.168.1.1", "private"),
    ("100.64.0.1", "carrier-grade NAT"), ("169.254.169.254", "link-local"), ("fe80::1%eth0", "link-local"),
    ("fd00:ec2::254", "private"), ("224.0.0.1", "multicast"), ("ff02::1", "multicast"), ("255.255.255.255", "reserved"),
    ("::ffff:8.8.8.8", "IPv4-mapped"), ("::ffff:127.0.0.1", "IPv4-mapped"), ("64:ff9b::7f00:1", "NAT64"),
    ("64:ff9b:1::a00:1", "NAT64"), ("2002:7f00:1::", "6to4"), ("2001:0:4136:e378::1", "Teredo"), ("::127.0.0.1", "reserved"),
    ("fec0::1", "reserved"), ("198.18.0.1", "benchmarking"), ("203.0.113.5", "documentation"), ("100::1", "discard"),
])
def test_an_address_that_is_not_public_is_refused(address, what):
    assert what in wrong_address(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450:4001::1"])
def test_a_public_address_is_not(address):
    assert wrong_address(address) is None


def test_what_the_deployment_allows_may_be_called_and_nothing_beside_it():
    assert wrong_address("10.1.2.3", ["10.1.0.0/16"]) is None
    assert wrong_address("10.2.2.3", ["10.1.0.0/16"])
    assert wrong_address("64:ff9b::7f00:1", ["64:ff9b::/96"]), "it ends at the loopback address"
    assert wrong_address("64:ff9b::808:808", ["64:ff9b::/96"]) is None
    assert "127.0.0.1" in first_wrong(["8.8.8.8", "127.0.0.1"], [])
    assert "no network" in wrong_network("10.1.0.1/16")


@pytest.mark.parametrize(("url", "words"), [
    ("", "must not be empty"), ("ftp://shop.example/", "HTTP_ALLOWED_SCHEMES"), ("//shop.example", "HTTP_ALLOWED_SCHEMES"),
    ("https://", "no host"), ("https://u:p@shop.example/", "Authorization"), ("https://shop.example/#x", "fragment"),
    ("https://shop.example:99999/", "is no URL"), ("https://u:pass/word@shop.example/", "a number"),
    ("https://shop.example:0/", "no host"), ("https://[::1", "is no URL"),
    ("https://shop.example/a b", "ASCII"), ("https://münchen.example/", "xn--"), ("https://shop.example\\@evil/", "ASCII"),
    ("https://evil.example/", "HTTP_ALLOWED_HOSTS"), ("https://" + "a" * 2000 + ".example", "2,000"),
])
def test_a_url_that_may_not_be_called_is_refused_with_the_mend(url, words):
    wrong = callback.wrong_url(url, ("https",), ("shop.example", "*.shop.example"), ())

    assert words in wrong and "'pass'" not in wrong


@pytest.mark.parametrize("url", ["http://127.0.0.1/", "http://[::1]:8000/", "http://169.254.169.254/latest"])
def test_an_address_in_a_url_is_judged_when_it_is_saved(url):
    assert "HTTP_ALLOWED_ADDRESSES" in callback.wrong_url(url, ("http",), ("*",), ())
    assert callback.wrong_url(URL, ("https",), ("*",), ()) is None


@pytest.mark.parametrize(("headers", "words"), [
    ({"Idempotency-Key": "x"}, "set by chrono_beat"), ({"chrono-attempt": "1"}, "set by chrono_beat"),
    ({"Webhook-Id": "x"}, "set by chrono_beat"), ({"Host": "x"}, "set by chrono_beat"), ({"X": "a\r\nY: b"}, "one line"),
    ({"X": 1}, "must be a text"), ({"X Y": "a"}, "not the name"), ({"X": "a", "x": "b"}, "twice"), ("[]", "dict"),
    ("{", "JSON object"), ({"X-Key": MASK}, "the mask"), ({f"X-{n}": "a" for n in range(40)}, "32 headers"), (7, "dict"),
    ({"X": deep(10_000)}, "must be a text"), ({"X": object()}, "must be a text"), ({"X": "a" * 9_000}, "8,192 bytes"),
])
def test_headers_that_cannot_be_sent_are_refused(headers, words):
    _, problems = callback.headers_text(headers)

    assert any(words in problem.message for problem in problems)


def test_values_of_secret_headers_are_masked_and_come_back_from_the_mask():
    stored = '{"Authorization":"Bearer abc", "X-Shop": "berlin"}'
    shown = callback.masked(stored)

    assert "abc" not in shown and "berlin" in shown
    assert callback.unmasked(shown, stored) == stored
    assert callback.unmasked({"Authorization": MASK, "X-Shop": "rome"}, stored) == {
        "Authorization": "Bearer abc", "X-Shop": "rome"}
    assert callback.unmasked({"X-Shop": "rome"}, stored) == {"X-Shop": "rome"}
    assert callback.masked("no JSON, secret") == MASK


@pytest.mark.parametrize("name", ["Authorization", "X-Api-Key", "Cookie", "X-Auth-Token", "apikey", "X-Password", "Key"])
def test_names_that_sound_secret_are(name):
    assert callback.is_secret(name)
    assert not callback.is_secret("X-Monkey")


def test_a_target_does_not_show_what_it_holds():
    target = HttpTarget(url=URL + "?t=s3cret", body="{}", headers='{"Authorization": "Bearer abcdefgh"}', secrets=("whsec_x",))

    assert "s3cret" not in repr(target) and "abcdefgh" not in repr(target) and "whsec" not in repr(target)
    text = callback.without_secrets("you sent abcdefgh, Bearer abcdefgh and whsec_x", target)
    assert text == f"you sent {MASK}, {MASK} and {MASK}"


def test_the_signature_is_that_of_standard_webhooks():
    """The example of the specification's own libraries."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'

    signed = callback.signature([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    both = callback.signature([callback.encode_secret(b"new"), secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert both.split()[1] == signed


@pytest.mark.parametrize(("text", "seconds"), [
    ("120", 120.0), (" 0 ", 0.0), (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0),
    (format_datetime(NOW - timedelta(days=1), usegmt=True), 0.0), ("soon", None), ("-5", None), ("1.5", None),
    ("9" * 400, 1e10), ("", None), ("Wed, 99 Foo 2026", None), ("²", None),
    ("Mon, 20 Nov 1995 19:12:08 +" + "9" * 21, None), (f"Wed, 21 Oct 2035 {'9' * 21}:28:00 GMT", None),
])
def test_retry_after_is_read_in_both_its_forms(text, seconds):
    assert callback.retry_after_seconds(text, NOW) == seconds


def test_only_what_may_go_well_the_next_time_is_tried_again():
    assert all(callback.is_retriable(status) for status in (408, 425, 429, 500, 503, 599))
    assert not any(callback.is_retriable(status) for status in (301, 400, 401, 404, 409, 410, 422))


def test_an_error_survives_the_way_from_a_child_to_its_parent():
    copy = pickle.loads(pickle.dumps(HttpTargetError("a text", False, 7.5)))

    assert (str(copy), copy.final, copy.retry_after_seconds) == ("a text", False, 7.5)
