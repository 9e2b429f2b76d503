"""What is native where gevent has replaced threads by greenlets: threads, sleeping, locks."""
from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from typing import Any


def native_thread_starter() -> Callable[..., Any] | None:
    """Return what starts a native thread where gevent has replaced threads by greenlets; else None."""
    try:
        from gevent import monkey
    except ImportError:
        return None
    return monkey.get_original("_thread", "start_new_thread") if monkey.is_module_patched("threading") else None


def native_sleep(seconds: float) -> None:
    """Let the native thread sleep, and no other."""
    _original("time", "sleep", time.sleep)(seconds)


def native_lock() -> Any:
    """Return a lock for greenlets and native threads alike. What is done under it must not wait for anything."""
    return _original("_thread", "allocate_lock", _thread.allocate_lock)()


def _original(module: str, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    try:
        from gevent import monkey
    except ImportError:
        return plain
    return monkey.get_original(module, name)
