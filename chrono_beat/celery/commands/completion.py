"""What a shell is told that one may type: names of tenants and jobs, read from the database.

The shell asks by running ``celery`` once more, which knows the app by ``-A`` and calls no command. **Bound.** At most
`MOST` names that begin with what is typed, and `PATIENCE_SECONDS` for the database: one that does not answer completes
nothing, and the prompt comes back. Loading the project takes as long as it does for every command.
"""
from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import click
from celery.app.utils import find_app

MOST = 50
PATIENCE_SECONDS = 2.0


def tenants(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return slugs of tenants that begin with what is typed."""
    return _within_patience(context, lambda root: [
        tenant.slug for tenant in root.tenants().every().filter(slug__startswith=incomplete)[:MOST]])


def jobs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return names of jobs, of the tenant that is named before or the default one, that begin with what is typed."""
    def read(root: Any) -> list[str]:
        tenant = context.params.get("tenant") or root.config().default_tenant
        return [job.name for job in root.jobs().list(tenant, prefix=incomplete)[:MOST]]

    return _within_patience(context, read)


def _root(context: click.Context) -> Any:
    """Return the composition root of the app that ``-A`` names; no command has run, so nobody has loaded it yet."""
    app = getattr(context.obj, "app", None) or find_app(context.find_root().params["app"])
    with contextlib.redirect_stdout(sys.stderr):                # what a project prints is no completion
        app.loader.import_default_modules()
    return app.chrono_beat.root


def _within_patience(context: click.Context, read: Callable[[Any], list[str]]) -> list[str]:
    found: list[str] = []
    try:
        root = _root(context)
    except Exception:                                           # a prompt is no place for an error
        return found

    def look() -> None:
        with contextlib.suppress(Exception):
            found.extend(read(root))

    # A thread that is still waiting for a server ends with the process, which is over after the answer.
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(PATIENCE_SECONDS)
    return found[:] if not looking.is_alive() else []
