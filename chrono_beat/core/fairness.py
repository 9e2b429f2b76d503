"""Whose turn it is: the choice of tenants in a draw, by weights and under caps.

**Rule.** Of the tenants of a pool that have work, the one with the least virtual time is first. Each execution it is
granted moves it on by 1 / weight, so among tenants that always have work, grants follow the weights. A tenant that is
paused, or that runs as much as it may, is set aside and costs nothing until a slot is free.

**Theory.** This is start-time fair queueing (Goyal, Vin and Cheng, 1996) with every execution as long as the next. The
pool has a virtual time of its own, the *floor*: that of whoever was first last. Nobody enters below it, so a tenant
that was idle has no credit to spend on a burst. And a tenant whose work is done stays in line until it is first; then
it is at the floor, and where it enters next time is not below where it left: to drain and come back at once gains
nothing.

**Worked example.** Tenant a has weight 3, b has weight 1, both enter at 0 with much work. The draws go a, b (ties by
name), a (1/3), a (2/3), a or b (both at 1) … three of four to a.

**Bound.** Two tenants that both have work differ from their shares by less than one execution each.

**Priorities** are a tenant's own affair: its draws take the least number that waits. Each tenth of its grants goes
through the numbers downwards instead, beginning with another one each time (`order_of`). So under a constant load of
high priority the first of each other one waits for at most a hundred grants of its tenant, not for ever. The grants are
counted, since virtual times jump: one that was set aside comes back at the floor, which might skip each tenth.

**Weakness.** Executions count alike however long they run; what bounds a tenant with long ones is its cap.

The draw script in Redis does the same (``redis/lua/draw.lua``, ``ready.lua``); a test compares the two over random
courses.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

DEFAULT_WEIGHT = 1
"""Weight of a tenant for which no limits were set."""

DEFAULT_MAX_RUNNING = 20
"""Executions that a tenant may run at once if no limits were set."""

PROMOTED_EVERY = 10
"""Of so many grants of a tenant, one does not begin with its highest priority."""

PRIORITIES = 10

Granted = TypeVar("Granted")


class FairLine:
    """The tenants of one pool that have work: who is first, and who is set aside.

    ``ready`` and ``capped`` map a tenant to its virtual time; a tenant is in at most one of them. ``turns`` has its grants
    since it entered.
    """

    def __init__(self) -> None:
        self.ready: dict[str, float] = {}
        self.capped: dict[str, float] = {}
        self.floor = 0.0
        self.turns: dict[str, int] = {}

    def enter(self, tenant: str) -> None:
        """Put a tenant that has got work in line, at the floor; one that is in line or set aside stays where it is."""
        if tenant not in self.ready and tenant not in self.capped:
            self.ready[tenant] = self.floor
            self.turns[tenant] = 0

    def bring_back(self, tenant: str) -> bool:
        """Put a tenant that was set aside in line again; says whether it was."""
        if tenant not in self.capped:
            return False
        self.ready[tenant] = max(self.floor, self.capped.pop(tenant))
        return True

    def first(self) -> str | None:
        """Return the tenant whose turn it is, and raise the floor to it; None where nobody is in line."""
        if not self.ready:
            return None
        virtual_time, name = min((time, tenant.encode()) for tenant, time in self.ready.items())
        self.floor = max(self.floor, virtual_time)
        return name.decode()

    def charge(self, tenant: str, weight: int) -> None:
        """Move a tenant on by one granted execution."""
        self.ready[tenant] += 1.0 / weight
        self.turns[tenant] += 1

    def set_aside(self, tenant: str) -> None:
        """Take a tenant that may run nothing now out of the line, with its virtual time."""
        self.capped[tenant] = self.ready.pop(tenant)

    def leave(self, tenant: str) -> None:
        """Take the first tenant, which has no work left, out of the line."""
        del self.ready[tenant], self.turns[tenant]

    def rest(self) -> None:
        """After a draw: where nobody has work any more, the next to come start equal."""
        if not self.ready and not self.capped:
            self.floor = 0.0


def order_of(turns: int) -> Sequence[int]:
    """Return the priorities in the order in which a tenant's next grant looks for work.

    Args:
        turns: grants of the tenant since it entered.
    """
    if turns % PROMOTED_EVERY != PROMOTED_EVERY - 1:
        return range(PRIORITIES)
    start = PRIORITIES - 1 - turns // PROMOTED_EVERY % PRIORITIES
    return [(start - nth) % PRIORITIES for nth in range(PRIORITIES)]


def draw(
    line: FairLine,
    credit: int,
    limits: Callable[[str], tuple[int, int]],
    take: Callable[[str], Granted | None],
) -> list[Granted]:
    """Draw up to *credit* executions.

    Args:
        line: the pool's tenants; it is changed.
        credit: executions at most.
        limits: returns a tenant's weight and how many more it may run now (0 while it is paused).
        take: grants a tenant's next execution and returns it; None where it has none left.

    Returns:
        What *take* granted, in order.
    """
    granted: list[Granted] = []
    while len(granted) < credit:                       # invariant 8
        tenant = line.first()
        if tenant is None:
            break
        weight, room = limits(tenant)
        if room < 1:
            line.set_aside(tenant)
            continue
        execution = take(tenant)
        if execution is None:
            line.leave(tenant)
        else:
            granted.append(execution)
            line.charge(tenant, weight)
    line.rest()
    return granted
