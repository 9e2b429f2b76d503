"""chrono_beat in a Celery app: ``ChronoBeat(app)`` is all that a project writes."""
from chrono_beat.celery.app import ChronoBeat

__all__ = ("ChronoBeat",)
