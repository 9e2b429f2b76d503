"""``manage.py chrono_openapi``: print the API's schema."""
import json
from typing import Any

from django.core.management.base import BaseCommand

from chrono_beat_django.api import api


class Command(BaseCommand):
    """Print the OpenAPI schema of the HTTP API."""

    help = "Print the OpenAPI schema of the HTTP API."

    def handle(self, *args: Any, **options: Any) -> None:
        """Print it."""
        self.stdout.write(json.dumps(api.get_openapi_schema(), indent=2, default=str))
