"""The deployment that is tormented: two dispatchers, three workers, and the files into which they say what they do."""
import json
import os

from benchmarks.site import ROOT, Deployment, lines_of

DISPATCHERS = 2
WORKERS = (("prefork", 4), ("prefork", 3), ("threads", 4))


class ChaosSite(Deployment):
    """PostgreSQL, Redis and the processes of `benchmarks.chaos.app`.

    What PostgreSQL has confirmed outlives its crash, as in production: the default of the tests, to confirm before it is
    written, would lose claims and outcomes that nobody promised to keep.
    """

    def __init__(self):
        super().__init__("benchmarks.chaos.app", ROOT, postgres={"synchronous_commit": "on", "full_page_writes": "on"})
        os.environ.update(self.variables())                # this process calls the API as well

    def variables(self):
        """Return where servers and files are."""
        self.bodies, self.events = self.directory / "bodies.jsonl", self.directory / "events.jsonl"
        for path in (self.bodies, self.events):
            path.touch()
        return {
            "DJANGO_SETTINGS_MODULE": "benchmarks.chaos.settings", "CHAOS_DATABASE": json.dumps(self.database),
            "CHAOS_REDIS": self.redis.url.rsplit("/", 1)[0], "CHAOS_BODIES": str(self.bodies),
            "CHAOS_EVENTS": str(self.events),
        }

    def start(self):
        """Start all processes and wait until they are ready."""
        for _ in range(DISPATCHERS):
            self.start_dispatcher()
        for pool, children in WORKERS:
            self.start_worker(pool, children)
        for worker in self.named("worker"):
            worker.says(" ready.")
        for dispatcher in self.named("dispatcher"):
            dispatcher.says("chrono_beat runs")

    def told(self):
        """Return the bodies' lines and the services' events, oldest first."""
        return tuple(sorted(lines_of(path), key=lambda line: line["at"]) for path in (self.bodies, self.events))
