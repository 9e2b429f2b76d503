"""Connections to addresses that were judged, and within a deadline.

A check of the *name* before a request is no guard: the name may resolve to something else a moment later (DNS
rebinding). So the resolver is asked once, here, each address is judged, and the socket is opened to that very address;
the name goes on being used for the Host header and for TLS. A redirect would lead elsewhere, so none is followed, and
no proxy of the environment is asked: it would connect for us.
"""
from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httpcore

from chrono_beat.core.addresses import wrong_address

Resolver = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host (name, port); raises OSError where there are none."""

MAX_ADDRESSES = 8
"""Addresses of one name that are tried."""


class AddressRefused(Exception):
    """The name leads to no address that may be connected to."""


def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host, as the system's resolver has them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Deadline:
    """A bound of all that one request does.

    Args:
        seconds: from now on.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self, wanted: float | None = None) -> float:
        """Return seconds until it, at most *wanted*.

        Raises:
            httpcore.TimeoutException: it is over.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise httpcore.TimeoutException("the time for the whole request is over")
        return left if wanted is None else min(left, wanted)


class GuardedBackend(httpcore.NetworkBackend):
    """Opens connections for one request.

    Args:
        deadline: of the request.
        allowed: networks that may be connected to although they are not public.
        resolver: replaced in tests.
    """

    def __init__(self, deadline: Deadline, allowed: Sequence[str], resolver: Resolver = resolve) -> None:
        self._deadline = deadline
        self._allowed = tuple(allowed)
        self._resolver = resolver
        self._stock = httpcore.SyncBackend()

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to an address of the host that may be connected to.

        Raises:
            AddressRefused: none of them may.
        """
        refused, failure = [], None
        for address in self._addresses(host, port, timeout)[:MAX_ADDRESSES]:
            if wrong := wrong_address(address, self._allowed):
                refused.append(wrong)
                continue
            try:
                # An address, so nothing is resolved again.
                stream = self._stock.connect_tcp(
                    address, port, timeout=self._deadline.left(timeout), local_address=local_address,
                    socket_options=socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
                continue
            return _BoundedStream(stream, self._deadline)
        if failure is None:
            raise AddressRefused(refused[0] if refused else "the name has no address")
        raise failure

    def _addresses(self, host: str, port: int, timeout: float | None) -> Sequence[str]:
        """Ask the resolver, in a thread: it knows no time-out."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answers.put(self._resolver(host, port))
            except (OSError, UnicodeError) as error:
                answers.put(error)

        threading.Thread(target=ask, name="chrono-resolve", daemon=True).start()
        try:
            answer = answers.get(timeout=self._deadline.left(timeout))
        except queue.Empty:
            raise httpcore.ConnectTimeout("the name was not resolved in time") from None
        if isinstance(answer, Exception):
            raise httpcore.ConnectError(f"the name could not be resolved: {answer}")
        return answer


class _BoundedStream(httpcore.NetworkStream):
    """A stream whose every operation ends by the deadline: a server that sends a byte now and then is no exception."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read what is there."""
        return self._stream.read(max_bytes, self._deadline.left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write all of it. The stock stream gives each of its sends the whole time, and a slow reader makes many of them."""
        connected, rest = self._stream.get_extra_info("socket"), memoryview(buffer)
        try:
            while rest:
                connected.settimeout(self._deadline.left(timeout))
                rest = rest[connected.send(rest):]
        except TimeoutError as error:
            raise httpcore.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error

    def close(self) -> None:
        """Close it."""
        self._stream.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        """Go on under TLS, for the name and not for the address."""
        return _BoundedStream(
            self._stream.start_tls(ssl_context, server_hostname, self._deadline.left(timeout)), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        """Ask the stream below."""
        return self._stream.get_extra_info(info)
