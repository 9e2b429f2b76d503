"""What differs between Celery's pools: how many slots there are, and whether a job can still be taken back."""
from __future__ import annotations

import contextlib
import os
import signal
import threading
from concurrent.futures import Future
from typing import Any

from chrono_beat.celery.worker.held import HeldDelivery

KILL_AFTER_SECONDS = 1.0                    # between SIGTERM and SIGKILL to a child whose body is to end
LOOK_AGAIN_SECONDS = (0.02, 0.2, 1.0)       # after a child's pipe closed


def is_prefork(pool: Any) -> bool:
    """Say whether bodies run in child processes, which can be killed one by one."""
    return bool(getattr(pool, "uses_semaphore", False))


def can_end_bodies(pool: Any) -> bool:
    """Say whether the pool keeps time limits: threads and solo run a body until it returns."""
    return is_prefork(pool) or bool(getattr(pool, "is_green", False))


def notice_deaths(pool: Any) -> None:
    """Let a prefork pool notice a child's death at once.

    It watches a pipe that closes when the child ends, and then asks for the child's exit status, once. The pipe
    closes a moment before there is a status; whoever is so fast looks again after 5 s only, and calls the child lost
    then.
    """
    asynpool = getattr(pool, "_pool", None)
    noticed = getattr(asynpool, "_event_process_exit", None)
    if noticed is None or "_event_process_exit" in asynpool.__dict__:
        return

    def notice(hub: Any, child: Any) -> None:
        noticed(hub, child)
        for delay in LOOK_AGAIN_SECONDS:
            hub.call_later(delay, asynpool.maintain_pool)

    asynpool._event_process_exit = notice


def end_child(pool: Any, pid: int) -> None:
    """End a child's process of a prefork pool, as its hard time limit does: SIGTERM, and SIGKILL where that is not
    enough. Callable from any thread."""
    process, _ = pool._pool._process_by_pid(pid)
    if process is None:
        return
    pool.terminate_job(pid)
    timer = threading.Timer(KILL_AFTER_SECONDS, _kill, (process,))
    timer.daemon = True
    timer.start()


def _kill(process: Any) -> None:
    if process._popen is not None and process._popen.returncode is None:      # not reaped: the number is still its own
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)


def slots(controller: Any, pool: Any) -> int:
    """Return how many bodies may run at once.

    With autoscale that is its maximum: measured by the processes there are, work would never exceed them and the pool
        never
    grow. The broker's prefetch count says something else: it is a multiple of this, and tasks with an ETA raise it
    further, so a worker that drew by it would hoard what others could run.
    """
    try:
        if getattr(pool, "is_green", False):
            return pool._pool.size                   # Celery 5.6 calls its running greenlets num_processes
        return controller.max_concurrency or pool.num_processes or 0
    except AttributeError:
        return 0                                     # the pool is stopped


def never_began(held: HeldDelivery, pool: Any) -> bool:
    """Take the job back from the pool where that is possible; says whether its body has not begun and will not."""
    if held.accepted or held.job is None:
        return False
    future = getattr(held.job, "f", None)
    if isinstance(future, Future):
        return future.cancel()                       # the threads pool's own shutdown would cancel it without a word
    if is_prefork(pool) and getattr(pool, "flush", None):
        # The flush before a stop has dropped what was not written to a child; what was written, the child will run.
        return getattr(held.job, "_write_to", None) is None and not held.job._accepted
    return False


def keep(held: HeldDelivery, pool: Any) -> None:
    """Let the pool hear of a job again that its flush dropped although a child has it.

    The flush forgets every job that is not accepted, also one whose message was completely written: the child runs it
        and
    nobody listens. Its lease would be renewed until this worker ends, with a slot and a lock that nobody frees.
    """
    job = held.job
    if held.accepted or job is None or not is_prefork(pool) or not getattr(pool, "flush", None):
        return
    writer = job._writer() if getattr(job, "_writer", None) else None
    written = writer is None or writer.gi_frame is None
    child = getattr(job, "_write_to", None)
    if written and child is not None and child._is_alive():
        job._cache.setdefault(job._job, job)
