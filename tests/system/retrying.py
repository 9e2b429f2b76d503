"""A task that puts its own retry so far off that it waits in the database, for the worker of a whole system."""
from celery import shared_task


@shared_task(name="tests.retrying", bind=True, max_retries=3)
def retrying(self, subject: str) -> str:
    """Ask for another run in twelve seconds, then succeed."""
    if self.request.retries == 0:
        raise self.retry(countdown=12)
    return f"{subject}: retry {self.request.retries}"
