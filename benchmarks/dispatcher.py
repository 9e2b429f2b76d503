"""One dispatcher process for a benchmark: ``python -m benchmarks.dispatcher [roles]``; stops on TERM."""
import logging
import os
import signal
import sys
import threading


def main() -> None:
    """Run the services named on the command line (default: dispatch) until TERM."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")
    logging.basicConfig(level=logging.WARNING)
    import django

    django.setup()
    from chrono_beat_django import wiring

    roles = tuple(sys.argv[1].split(",")) if len(sys.argv) > 1 else ("dispatch",)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    runner = wiring.services(roles)
    runner.start()
    stop.wait()
    runner.stop()


if __name__ == "__main__":
    main()
