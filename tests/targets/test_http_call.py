"""One call of an HTTP target, against a server that really listens: what is sent, what answers mean, where it never goes."""
import contextlib
import gzip
import socket
import ssl
import threading
from pathlib import Path

import httpcore
import pytest

from chrono_beat.core import callback
from chrono_beat.core.callback import MASK, HttpTarget, HttpTargetError
from chrono_beat.core.config import Config
from chrono_beat.targets import http
from chrono_beat.targets.guard import Deadline, GuardedBackend
from chrono_beat.targets.http import Call, call
from tests.targets.receiver import Receiver, reply

CERTIFICATE = Path(__file__).with_name("shop.example.pem")      # with its key; both are for tests only
OURS = Config(http_allowed_addresses=("127.0.0.0/8",))
STRICT = Config()
READ_BYTES = 2_048
OF = Call("job:20260102T090000Z", "job:20260102T090000Z:2", 2, "2026-01-02T09:00:00+00:00")
SECRETS = (callback.encode_secret(b"new"), callback.encode_secret(b"old"))


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.close()


@contextlib.contextmanager
def slow_reader(server):
    """Take READ_BYTES of one connection again and again, each time sooner than a call's time is over."""
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    reads, stop = [], threading.Event()

    def read():
        connection, _ = server.accept()
        with connection:
            while not stop.wait(0.02) and (got := connection.recv(READ_BYTES)):
                reads.append(len(got))

    thread = threading.Thread(target=read)
    thread.start()
    yield reads
    stop.set()
    thread.join()


def called(receiver, config=OURS, resolver=None, url=None, **target):
    target = HttpTarget(url=url or receiver.url(), **{"body": '{"a": 1.0}', **target})
    return call(target, OF, config, **({"resolver": resolver} if resolver else {}))


def refusal(receiver, *args, **target):
    with pytest.raises(HttpTargetError) as refused:
        called(receiver, *args, **target)
    return refused.value


def test_a_call_says_which_execution_it_is_and_is_signed_with_both_secrets(receiver):
    answer = called(receiver, headers='{"X-Shop": "berlin", "User-Agent": "mine"}', secrets=SECRETS)

    assert answer.status == 204
    [(path, headers, body)] = receiver.requests
    assert (path, body, headers["Content-Type"]) == ("/hook", b'{"a": 1.0}', "application/json")
    assert (headers["X-Shop"], headers["User-Agent"]) == ("berlin", "mine")
    assert headers["Idempotency-Key"] == "job:20260102T090000Z" == headers["webhook-id"]
    assert (headers["Chrono-Execution"], headers["Chrono-Attempt"]) == (OF.execution_id, "2")
    assert headers["Chrono-Scheduled-At"] == "2026-01-02T09:00:00+00:00"
    signed = callback.signature(SECRETS, headers["webhook-id"], int(headers["webhook-timestamp"]), body)
    assert headers["webhook-signature"] == signed and len(signed.split()) == 2


def test_without_a_secret_nothing_is_signed(receiver):
    called(receiver)

    assert "webhook-signature" not in receiver.requests[0][1]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_what_may_go_well_the_next_time_is_worth_another_attempt(receiver, status):
    receiver.answer = lambda handler: reply(handler, status, b"busy", Retry_After="7")

    error = refusal(receiver)
    assert (error.final, error.retry_after_seconds, str(error)) == (False, 7.0, f"127.0.0.1 answered {status}: busy")


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422])
def test_what_will_not_go_well_is_final(receiver, status):
    receiver.answer = lambda handler: reply(handler, status, b"no", Retry_After="7")

    error = refusal(receiver)
    assert (error.final, error.retry_after_seconds) == (True, None)


def test_a_redirect_is_not_followed(receiver):
    receiver.answer = lambda handler: reply(handler, 307, Location=receiver.url("/elsewhere"))

    error = refusal(receiver)
    assert error.final and "redirect" in str(error)
    assert [path for path, *_ in receiver.requests] == ["/hook"]


def test_an_answer_is_kept_short_and_without_secrets(receiver):
    headers = '{"Authorization": "Bearer abcdefgh"}'
    receiver.answer = lambda handler: reply(
        handler, 400, b"bad: " + handler.headers["Authorization"].encode() + b"\n\x00" + b"x" * 5_000_000)

    text = str(refusal(receiver, headers=headers))
    assert "abcdefgh" not in text and MASK in text and "\n" not in text
    assert len(text) < callback.MAX_ANSWER_CHARACTERS + 50


def test_an_answer_without_end_is_not_read_to_its_end(receiver):
    def endless(handler):
        handler.send_response(200)
        handler.end_headers()
        while not receiver.released.is_set():
            handler.wfile.write(b"x" * 65_536)

    receiver.answer = endless
    assert called(receiver).status == 200


def test_a_compressed_answer_is_not_unpacked(receiver):
    """A bomb cannot go off where nothing is unpacked."""
    receiver.answer = lambda handler: reply(handler, 500, gzip.compress(b"0" * 10_000_000), Content_Encoding="gzip")

    assert str(refusal(receiver)).endswith("answered 500: (encoded)")
    assert receiver.requests[0][1]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("answer", ["nothing", "a byte now and then"])
def test_the_whole_call_ends_in_time(receiver, answer):
    def slow(handler):
        if answer != "nothing":
            handler.send_response(200)
            handler.end_headers()
        while not receiver.released.wait(0.05):
            if answer != "nothing":
                handler.wfile.write(b"x")

    receiver.answer = slow
    error = refusal(receiver, timeout_seconds=0.3)
    assert not error.final and "in time" in str(error)


def test_a_reader_that_takes_a_little_now_and_then_does_not_hold_the_call():
    with socket.create_server(("127.0.0.1", 0)) as server, slow_reader(server) as reads:
        backend = GuardedBackend(Deadline(0.5), OURS.http_allowed_addresses)
        small = [(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)]
        stream = backend.connect_tcp("127.0.0.1", server.getsockname()[1], socket_options=small)
        with pytest.raises(httpcore.TimeoutException):
            stream.write(b"x" * 400_000)
        stream.close()

    assert reads and max(reads) <= READ_BYTES            # it did read, and there was more to come


def test_a_resolver_that_does_not_answer_does_not_hold_the_call(receiver):
    error = refusal(receiver, OURS, lambda host, port: receiver.released.wait(20) and [], timeout_seconds=0.2,
                    url=receiver.url(host="shop.example"))

    assert not error.final and "in time" in str(error)


@pytest.mark.parametrize("answer", [b"", b"no HTTP at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000])
def test_what_breaks_off_or_is_no_http_is_tried_again(receiver, answer):
    def raw(handler):
        handler.wfile.write(answer)
        handler.wfile.flush()
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True

    receiver.answer = raw
    assert not refusal(receiver).final


def test_nobody_there_and_an_unknown_name_are_tried_again(receiver):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"
        error = refusal(receiver, url=url)
        assert not error.final and "ConnectError" in str(error)

    def unknown(host, port):
        raise socket.gaierror(-2, "Name or service not known")

    error = refusal(receiver, OURS, unknown, url=receiver.url(host="shop.example"))
    assert not error.final and "could not be resolved" in str(error)


# -- where it never goes ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["::1"], ["::ffff:127.0.0.1"], ["10.0.0.1", "169.254.169.254"], []])
def test_a_name_that_leads_inside_is_refused_for_good(receiver, addresses):
    error = refusal(receiver, STRICT, lambda host, port: addresses, url=receiver.url(host="shop.example"))

    assert error.final and "HTTP_ALLOWED_ADDRESSES" in str(error)
    assert receiver.requests == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1", "[::1]", "[::ffff:7f00:1]"])
def test_no_spelling_of_loopback_gets_through(receiver, host):
    error = refusal(receiver, STRICT, url=receiver.url(host=host))

    assert error.final or "resolved" in str(error)
    assert receiver.requests == []


def test_a_name_that_changes_its_address_after_the_check_gains_nothing(receiver):
    """DNS rebinding: the address that was judged is the one that is connected to; the name is asked once."""
    asked = []

    def rebinding(host, port):
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    assert called(receiver, OURS, rebinding, url=receiver.url(host="shop.example")).status == 204
    assert asked == ["shop.example"]
    assert receiver.requests[0][1]["Host"] == f"shop.example:{receiver.port}"


def test_the_next_address_is_tried_where_one_does_not_answer_or_is_refused(receiver):
    assert called(receiver, OURS, lambda *_: ["10.0.0.1", "127.255.255.255", "127.0.0.1"],
                  url=receiver.url(host="shop.example")).status == 204


def test_settings_that_became_stricter_count_for_jobs_saved_before(receiver):
    error = refusal(receiver, Config(http_allowed_hosts=("shop.example",)))

    assert error.final and "HTTP_ALLOWED_HOSTS" in str(error)


def test_a_proxy_of_the_environment_is_not_asked(receiver, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")

    assert called(receiver).status == 204


def test_tls_is_spoken_for_the_name_and_not_for_the_address(monkeypatch):
    receiver, names = Receiver(), []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    context.sni_callback = lambda _, name, __: names.append(name)
    receiver.server.socket = context.wrap_socket(receiver.server.socket, server_side=True)
    url = f"https://shop.example:{receiver.port}/"

    error = refusal(receiver, OURS, lambda *_: ["127.0.0.1"], url=url)
    assert not error.final and "CERTIFICATE_VERIFY_FAILED" in str(error) and receiver.requests == []
    monkeypatch.setattr(http, "_tls", lambda: ssl.create_default_context(cafile=CERTIFICATE))
    assert called(receiver, OURS, lambda *_: ["127.0.0.1"], url=url).status == 204
    assert names == ["shop.example"] * 2
    receiver.close()
