"""Load the example's tenants, its jobs (schedules as people really write them) and three one-off reminders."""
import csv
from datetime import timedelta
from pathlib import Path

from django.core.management.base import BaseCommand
from django.utils import timezone

from chrono_beat.core.schedule import CeleryCrontab
from chrono_beat_django import jobs
from chrono_beat_django.models import Job, Tenant

CATALOGUE = Path(__file__).resolve().parents[2] / "catalogue.csv"
TENANTS = {"acme": ("Acme", 2), "globex": ("Globex", 1), "initech": ("Initech", 1)}
CELERY_FIELDS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")


def schedule_of(row: dict[str, str]) -> dict[str, object]:
    """Return the schedule arguments of ``jobs.create`` for one line of the catalogue."""
    if row["kind"] == "interval":
        return {"every": timedelta(seconds=int(row["expression"]))}
    if row["kind"] == "celery":
        fields = dict(zip(CELERY_FIELDS, row["expression"].split(" | "), strict=True))
        return {"schedule": CeleryCrontab(**fields, timezone=row["timezone"])}
    return {"cron": row["expression"], "timezone": row["timezone"]}


class Command(BaseCommand):
    help = "Load the example's tenants and jobs; what is there already stays as it is."

    def handle(self, *args, **options):
        for slug, (name, weight) in TENANTS.items():
            Tenant.objects.get_or_create(slug=slug, defaults={"name": name, "weight": weight})
        there = set(Job.objects.values_list("tenant", "name"))
        made = 0
        with CATALOGUE.open(encoding="utf-8", newline="") as source:
            for row in csv.DictReader(source):
                if (row["tenant"], row["name"]) in there:
                    continue
                jobs.create(
                    tenant=row["tenant"], name=row["name"], task=row["task"], kwargs={"subject": row["name"]},
                    actor="load_catalogue", **schedule_of(row),
                )
                made += 1
        now = timezone.now()
        for seconds, who, tenant in ((10, "Ada", "acme"), (20, "Grace", "globex"), (30, "Edsger", "initech")):
            jobs.create(
                tenant=tenant, name=f"remind {who} {now:%H%M%S}", task="shop.remind", kwargs={"who": who},
                at=now + timedelta(seconds=seconds), actor="load_catalogue",
            )
            made += 1
        if options["verbosity"]:
            self.stdout.write(f"{made} jobs loaded")
