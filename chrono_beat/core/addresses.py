"""Which addresses a tenant's URL may lead to.

A scheduler that calls any URL it is given is a way into the network it stands in. So the address that is really
connected to is judged, whatever name it came from: public addresses pass, everything else only where the deployment
allows it. IPv6 is read the strict way round: what is not global unicast is refused, also ranges nobody has thought of.
An address that carries an IPv4 address (mapped, NAT64, 6to4 …) needs both to be allowed.

Sources: IANA's registries of special-purpose addresses (RFC 6890 and what it was amended by).
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network

_SPECIAL: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "this host"), ("10.0.0.0/8", "private"), ("100.64.0.0/10", "carrier-grade NAT"),
    ("127.0.0.0/8", "loopback"), ("169.254.0.0/16", "link-local"), ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "special"), ("192.0.2.0/24", "documentation"), ("192.88.99.0/24", "6to4 relay"),
    ("192.168.0.0/16", "private"), ("198.18.0.0/15", "benchmarking"), ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"), ("224.0.0.0/4", "multicast"), ("240.0.0.0/4", "reserved"),
    ("::/128", "this host"), ("::1/128", "loopback"), ("::ffff:0:0/96", "IPv4-mapped"), ("64:ff9b::/96", "NAT64"),
    ("64:ff9b:1::/48", "NAT64"), ("100::/64", "discard"), ("2001::/32", "Teredo"), ("2001::/23", "special"),
    ("2001:db8::/32", "documentation"), ("2002::/16", "6to4"), ("3fff::/20", "documentation"), ("fc00::/7", "private"),
    ("fe80::/10", "link-local"), ("ff00::/8", "multicast"),
)
_NETWORKS = tuple((ip_network(text), what) for text, what in _SPECIAL)
_GLOBAL_V6 = IPv6Network("2000::/3")


def wrong_address(text: str, allowed: Sequence[str] = ()) -> str | None:
    """Say why this address must not be connected to, None where it may be.

    Args:
        text: an IPv4 or IPv6 address.
        allowed: networks that are allowed although they are not public.
    """
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return f"{text[:60]!r} is no address"
    networks = parsed(tuple(allowed))
    for each in (address, *_carried(address)):
        if not any(each.version == network.version and each in network for network in networks):
            what = _special(each)
            if what:
                return f"{text} is not a public address ({what})"
    return None


def wrong_network(text: str) -> str | None:
    """Say why this is no network such as 10.1.0.0/16, None where it is one."""
    try:
        ip_network(text)
    except ValueError as error:
        return f"{text[:60]!r} is no network such as 10.1.0.0/16: {error}"
    return None


@lru_cache(maxsize=16)
def parsed(networks: tuple[str, ...]) -> tuple[Network, ...]:
    """Return networks as values."""
    return tuple(ip_network(text) for text in networks)


def first_wrong(addresses: Iterable[str], allowed: Sequence[str]) -> str | None:
    """Say why the first of the addresses that must not be connected to is so; None where all may be."""
    return next((wrong for text in addresses if (wrong := wrong_address(text, allowed))), None)


def _special(address: IPv4Address | IPv6Address) -> str:
    for network, what in _NETWORKS:
        if address.version == network.version and address in network:
            return what
    return "" if address.version == 4 or address in _GLOBAL_V6 else "reserved"


def _carried(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses that packets to this one may end at."""
    if isinstance(address, IPv4Address):
        return
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if any(address in network for network in (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))):
        yield IPv4Address(int(address) & 0xFFFFFFFF)
