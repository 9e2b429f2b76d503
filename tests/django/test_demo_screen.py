"""The demo's table fits the terminal, and what a reader needs first stands first."""
import importlib.util
import io
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone
from rich.console import Console

from chrono_beat_django.models import Execution

SCREEN = Path(__file__).resolve().parents[2] / "example_project" / "example" / "screen.py"
PLACES = {"dashboard": "http://127.0.0.1:1/chrono/", "login": "user admin, password a-password", "logs": "/tmp/logs"}

pytestmark = pytest.mark.django_db


@pytest.fixture
def screen():
    """The screen over three tenants and sixty executions; loaded by itself, for the package beside it makes a Celery app."""
    spec = importlib.util.spec_from_file_location("demo_screen", SCREEN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    now = timezone.now()
    for number in range(60):
        at = now - timedelta(seconds=number)
        job = uuid.uuid4()
        Execution.objects.create(
            id=f"{job}:{number}:1", job_id=job, tenant=("acme", "globex", "initech")[number % 3], partition=0, kind="schedule",
            job_name="flush text message inbox", scheduled_at=at, due_at=at, first_due_at=at, state="succeeded", started_at=at,
            worker="one@here")
    return module.Screen(PLACES, silent=False)


def drawn(screen, width, height):
    screen.console = Console(width=width, height=height, file=io.StringIO(), force_terminal=True)
    return ["".join(part.text for part in line) for line in screen.console.render_lines(screen.picture())]


@pytest.mark.parametrize("width, height, coming, worker", [
    (80, 24, False, False), (120, 40, True, True), (200, 60, True, True), (60, 18, False, False), (100, 33, False, True)])
def test_the_table_fills_the_terminal_and_no_more(screen, width, height, coming, worker):
    lines = drawn(screen, width, height)

    assert len(lines) == height - 1, "one line is the cursor's"
    assert [line.split()[0] for line in lines[:3]] == list(PLACES)
    assert any("Coming up" in line for line in lines) is coming
    assert any(line.endswith("one") for line in map(str.rstrip, lines)) is worker


def test_a_job_and_its_lateness_can_be_read_in_80_columns(screen):
    assert any("flush text message inbox" in line and line.rstrip().endswith("succeeded      0 ms")
               for line in drawn(screen, 80, 24))


def test_a_terminal_too_low_still_shows_where_to_look(screen):
    assert "password a-password" in drawn(screen, 80, 5)[1]
