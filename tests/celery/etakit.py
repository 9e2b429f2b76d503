"""An app whose messages for later go into a JobStore in memory."""
from types import SimpleNamespace

from chrono_beat.core import lifecycle
from chrono_beat.core.eta import job_id_of
from chrono_beat.testing.memory_jobs import MemoryJobStore

HOUR = 3600


class Due:
    """What stands for chrono_beat_django's side: a store in memory.

    Args:
        clock: of the store.
        partitions: of the due index.

    *failing* is raised instead of keeping anything; of *revoked* each id was revoked.
    """

    def __init__(self, clock, partitions=64):
        self.clock, self.store = clock, MemoryJobStore(clock, partitions=partitions)
        self.failing, self.tries, self.revoked = None, 0, []
        self.epochs = self.store.take_partitions("d", range(partitions), 10**15)

    def add(self, task):
        self.tries += 1
        if self.failing:
            raise self.failing
        return self.store.add_eta_task(task)

    def revoke(self, task_ids, ended):
        self.revoked += task_ids
        if self.failing:
            raise self.failing
        for task_id in task_ids:
            for row in self.store.rows(job_id_of(task_id)):
                if row.state == lifecycle.SCHEDULED:
                    row.state = lifecycle.CANCELLED
                    ended(row)

    def rows(self):
        return self.store.rows()

    def one(self):
        [row] = self.rows()
        return row

    def load(self, later_seconds=0.0):
        """Move the store's clock, and return what is due then."""
        self.clock.advance(us=round(later_seconds * 1_000_000))
        return self.store.load_scheduled(self.epochs, self.store.now_us(), 1_000)


def give_root(beat, config, queue, due):
    """Let a ChronoBeat find its parts here."""
    beat._root = SimpleNamespace(config=config, queue=queue, eta=lambda: due)
