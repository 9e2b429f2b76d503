"""Callers at the same time, in threads of this process."""
import threading
from concurrent.futures import ThreadPoolExecutor

from django.db import connections


def at_once(count, work):
    """Run ``work(0)`` to ``work(count - 1)``, all begun together, each with database connections of its own.

    Returns:
        What each returned or raised, in this order.
    """
    start = threading.Barrier(count)

    def one(number):
        start.wait()
        try:
            return work(number)
        except Exception as error:
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))
