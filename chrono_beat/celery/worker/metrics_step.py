"""``celery worker --metrics-port``: the bootstep that answers Prometheus for one worker.

All of chrono_beat's work in a worker (drawing, leases, outcomes) is done by its main process, on every pool, so that one
counts and answers; the children of a prefork pool count nothing, and prometheus-client's mode for several processes is not
needed. The port opens when the pool is there, so that no child inherits it from the start.
"""
from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import click
from celery import bootsteps
from celery.exceptions import ImproperlyConfigured

OPTIONS = (
    click.Option(["--metrics-port"], type=click.IntRange(1, 65535), metavar="PORT",
                 help="chrono_beat: answer Prometheus at this port; needs chrono-beat[metrics]."),
    click.Option(["--metrics-address"], default="127.0.0.1", show_default=True, metavar="ADDRESS",
                 help="chrono_beat: where that port listens; 0.0.0.0 for all of this host's addresses."),
)


class MetricsStep(bootsteps.StartStopStep):
    """Worker bootstep: counts and answers while the worker runs; does nothing without the option.

    Raises:
        ImproperlyConfigured: the library is missing, or the port can't be had.
    """

    requires = ("celery.worker.components:Pool",)
    label = "chrono_beat metrics"

    def __init__(
        self, worker: Any, metrics_port: int | None = None, metrics_address: str = "127.0.0.1", **kwargs: Any,
    ) -> None:
        self._port, self._address = metrics_port, metrics_address
        self._open = ExitStack()
        self.enabled = metrics_port is not None
        super().__init__(worker, **kwargs)

    def start(self, worker: Any) -> None:
        try:
            from chrono_beat.metrics import Metrics, exposed
        except ModuleNotFoundError:
            raise ImproperlyConfigured(
                "--metrics-port: prometheus-client is not installed: pip install 'chrono-beat[metrics]'") from None
        metrics = Metrics(tenants=worker.app.chrono_beat.config.metrics_tenants)
        try:
            self._open.enter_context(exposed(metrics, self._port, self._address))
        except OSError as error:
            raise ImproperlyConfigured(f"--metrics-port: {self._address}:{self._port}: {error}") from None

    def stop(self, worker: Any) -> None:
        self._open.close()

    terminate = stop
