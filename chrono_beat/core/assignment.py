"""Which member owns which partitions, worked out by every member alike, with no leader.

**Rule.** Members share the partitions evenly: no member has more than one partition more than another. The answer
depends on the set of members only, so all who see the same members agree; while they see different ones, the
partitions' leases decide.

**Theory.** Rendezvous hashing (Thaler and Ravishankar, 1998): each pair of partition and member has a weight, a hash of
both, and a partition goes to the member that weighs most. A member that leaves frees its partitions and no other moves.
But the shares are even by chance only: of 64 partitions and 8 members one easily has 13 and another 4. So loads are
bounded: the pairs are taken from the heaviest down, and a member whose share is full takes no more.

**Worked example.** 64 partitions, 3 members: a share is 21, and one partition is left over. The first member that comes
to a 22nd takes it; from then on all are full at 21.

**Bound.** P × M hashes and a sort for P partitions and M members: 640 for 64 and 10, done once a change of members.

**Weakness.** Evenness costs movement. When one member joins or leaves, about 1.1 (2 members) to 1.8 (13 members) times
the unavoidable number of partitions moves at 64 partitions, less with more of them.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

MAX_REMEMBERED = 16
"""Answers that are kept, because members ask again each second and seldom change."""


def assign(partitions: int, members: Sequence[str]) -> dict[str, list[int]]:
    """Share partitions among members.

    Args:
        partitions: how many there are; they are numbered from 0.
        members: names, in any order; a name that is given twice counts once.

    Returns:
        Each member's partitions in ascending order, by member in the order of names; empty without members.

    Raises:
        ValueError: there are fewer than 1 partitions.
    """
    shares: dict[str, list[int]] = {member: [] for member in sorted(set(members))}
    for partition, owner in enumerate(_owners(partitions, tuple(shares))):
        shares[owner].append(partition)
    return shares


def owned_by(member: str, members: Sequence[str], partitions: int) -> list[int]:
    """Return one member's share.

    Args:
        member: its name.
        members: the names of all, in any order.
        partitions: how many there are.

    Returns:
        Its partitions in ascending order; none if it is not among the members.

    Raises:
        ValueError: there are fewer than 1 partitions.
    """
    return assign(partitions, members).get(member, [])


@lru_cache(maxsize=MAX_REMEMBERED)
def _owners(partitions: int, members: tuple[str, ...]) -> tuple[str, ...]:
    if partitions < 1:
        raise ValueError(f"there must be at least 1 partition, not {partitions}")
    if not members:
        return ()
    share, larger_shares = divmod(partitions, len(members))
    load = dict.fromkeys(members, 0)
    owners: dict[int, str] = {}
    pairs = [(_weight(partition, member), partition, member) for partition in range(partitions) for member in members]
    for _, partition, member in sorted(pairs, reverse=True):
        if partition in owners or load[member] > share or (load[member] == share and larger_shares == 0):
            continue
        if load[member] == share:
            larger_shares -= 1
        load[member] += 1
        owners[partition] = member
    return tuple(owners[partition] for partition in range(partitions))


def _weight(partition: int, member: str) -> int:
    """Hash a pair to 64 bits; the same in every process and release, which `hash()` is not."""
    return int.from_bytes(blake2b(f"{partition}:{member}".encode(), digest_size=8).digest(), "big")
