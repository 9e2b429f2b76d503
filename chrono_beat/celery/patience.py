"""What must not be lost for a moment in which a server is away: Celery drops a task whose retry cannot be sent."""
from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

STORE_PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0, 4.0)
"""Between attempts to store a retry."""


def patiently(store: Callable[[], T], away: type[Exception], *, what: str) -> T:
    """Return what a call returns, which is made again for some seconds while its server is away.

    Args:
        store: the call; one that was carried out without an answer must do no harm when it is repeated.
        away: what it raises while the server is away. The last attempt's goes to the caller.
        what: for the log, what cannot be done yet.
    """
    for pause in STORE_PAUSES_SECONDS:
        try:
            return store()
        except away as error:
            logger.warning("%s: %s", what, error)
            time.sleep(pause)
    return store()
