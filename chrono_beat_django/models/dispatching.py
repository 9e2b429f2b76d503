"""Who owns which slice of the due index and of Redis."""
from __future__ import annotations

from django.db import models
from django.db.models.functions import Now
from django.utils.timezone import now

from chrono_beat_django.models.columns import FIRST_INSTANT, both


class Partition(models.Model):
    """A slice of the due index and the lease on it. ``epoch`` grows with every new owner and never shrinks.

    ``loaded_epoch`` is the epoch under which all rows that earlier owners held have been found.
    """

    number = models.PositiveIntegerField(primary_key=True)
    owner = models.CharField(max_length=255, blank=True, **both(""))
    epoch = models.BigIntegerField(**both(0))
    loaded_epoch = models.BigIntegerField(**both(0))
    expires_at = models.DateTimeField(default=FIRST_INSTANT, db_default=FIRST_INSTANT)
    offered = models.BooleanField(**both(False))

    class Meta:
        db_table = "chrono_partition"
        ordering = ["number"]

    def __str__(self) -> str:
        return str(self.number)


class Lane(models.Model):
    """A slice of the Redis key space: its generation, and which server's memory that generation began with."""

    number = models.PositiveIntegerField(primary_key=True)
    generation = models.BigIntegerField(**both(0))
    replication_id = models.CharField(max_length=100, blank=True, **both(""))
    began_at = models.DateTimeField(default=FIRST_INSTANT, db_default=FIRST_INSTANT)
    has_plain_tasks = models.BooleanField(**both(False))

    class Meta:
        db_table = "chrono_lane"
        ordering = ["number"]

    def __str__(self) -> str:
        return str(self.number)


class Dispatcher(models.Model):
    """The heartbeat of a member that shares the partitions."""

    member = models.CharField(primary_key=True, max_length=255)
    expires_at = models.DateTimeField()
    leaving = models.BooleanField(**both(False))

    class Meta:
        db_table = "chrono_dispatcher"
        ordering = ["member"]

    def __str__(self) -> str:
        return self.member


class Deployment(models.Model):
    """The one row that fixes the numbers of partitions and lanes at the first migrate."""

    id = models.PositiveSmallIntegerField(primary_key=True, **both(1))
    partitions = models.PositiveIntegerField()
    lanes = models.PositiveIntegerField()
    zone_data = models.CharField(
        max_length=32, blank=True, help_text="Version of the zone data that next runs were computed with.", **both(""))
    created_at = models.DateTimeField(default=now, db_default=Now())

    class Meta:
        db_table = "chrono_deployment"
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="chrono_deployment_single")]

    def __str__(self) -> str:
        return f"{self.partitions} partitions, {self.lanes} lanes"
