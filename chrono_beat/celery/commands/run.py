"""``chrono run``: the services, until TERM or Ctrl-C."""
from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from chrono_beat.celery.commands.output import TROUBLE, WRONG_INPUT, command, fail, root
from chrono_beat.celery.relay_sender import CelerySender

ROLES = ("dispatch", "record", "reap", "audit", "keep", "relay", "alert")


def chosen_roles(text: str) -> tuple[str, ...]:
    """Return the roles of a comma-separated list; leaves with exit status 2 where one is unknown."""
    roles = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [role for role in roles if role not in ROLES]
    if unknown or not roles:
        fail(f"--roles: {', '.join(unknown) or 'none'} given; known are {', '.join(ROLES)}", WRONG_INPUT)
    return roles


@click.command()
@click.option("--roles", default=",".join(ROLES), show_default=True, metavar="LIST", help="Which services run here.")
@click.option("--name", default=None, help="Unique name; default: host, process id and a random part.")
@click.option("--health-file", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH",
              help="Touched each second while every service gets on; a probe looks at its age.")
@click.option("--metrics-port", type=click.IntRange(1, 65535), metavar="PORT",
              help="Answer Prometheus at this port; needs chrono-beat[metrics].")
@click.option("--metrics-address", default="127.0.0.1", show_default=True, metavar="ADDRESS",
              help="Where that port listens; 0.0.0.0 for all of this host's addresses.")
@click.option("-l", "--loglevel", default="INFO", show_default=True,
              type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False), help="What is logged.")
@click.pass_context
@command
def run(
    context: click.Context, roles: str, name: str | None, health_file: Path | None, metrics_port: int | None,
    metrics_address: str, loglevel: str,
) -> None:
    """Run the dispatcher and its companions until TERM or Ctrl-C.

    Any number may run; they share the partitions. One that is stopped hands its partitions over before it leaves.
    """
    chosen = chosen_roles(roles)
    context.obj.app.log.setup(loglevel=loglevel.upper(), redirect_stdouts=False)
    runner_root = root(context)
    runner = runner_root.services(chosen, name=name, sender=CelerySender(context.obj.app))
    # The deployment's own figures stand where the keeper runs, so that they can be had without the web pages.
    figures = runner_root.deployment_figures if "keep" in chosen and hasattr(runner_root, "deployment_figures") else None
    with measured(metrics_port, metrics_address, runner_root.config().metrics_tenants, figures):
        serve(runner, health_file)


@contextlib.contextmanager
def measured(
    port: int | None, address: str, tenants: int, figures: Callable[[], Any] | None = None,
) -> Iterator[None]:
    """Count what is told within the block, and answer Prometheus; does nothing without a port.

    Leaves with exit status 2 where the library is missing or the port can't be had.

    Args:
        tenants: how many of them are named; all others are one.
        figures: reads gauges that are told as well.
    """
    if port is None:
        yield
        return
    try:
        from chrono_beat import metrics
    except ModuleNotFoundError:
        fail("--metrics-port: prometheus-client is not installed: pip install 'chrono-beat[metrics]'", WRONG_INPUT)
    counted = metrics.Metrics(tenants=tenants)
    if figures is not None:
        counted.registry.register(metrics.Figures(figures))
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(metrics.exposed(counted, port, address))
        except OSError as error:
            fail(f"--metrics-port: {address}:{port}: {error}", WRONG_INPUT)
        yield


def serve(runner: Any, health_file: Path | None = None) -> None:
    """Start the services, wait for a signal, stop them in order.

    Args:
        health_file: touched each second while no service is unhealthy, and removed at the end.
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    runner.start()
    click.echo(f"chrono_beat runs: {', '.join(service.name for service in runner.services)}. Ctrl-C stops it.")
    try:
        while not stop.wait(1.0):
            if runner.failed():
                fail("a service could not be kept running; see the log", TROUBLE)
            show_health(runner, health_file)
    finally:
        runner.stop()
        if health_file is not None:
            health_file.unlink(missing_ok=True)


def show_health(runner: Any, health_file: Path | None) -> None:
    """Touch the file if every service has got on lately; what cannot be written is not healthy either."""
    if health_file is not None and not runner.unhealthy():
        with contextlib.suppress(OSError):
            health_file.touch()
