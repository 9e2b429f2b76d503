"""What ``manage.py check`` says, and that it is asked."""
import os
import subprocess
import sys

import pytest
from django.conf import settings

from chrono_beat_django import checks, conf
from chrono_beat_django.models import Deployment


def ids_of(messages):
    return [message.id for message in messages]


def test_settings_that_work_say_nothing():
    assert ids_of(checks.check_settings()) == []


def test_no_settings_at_all_are_fine_too(settings):
    settings.CHRONO_BEAT = {}

    assert checks.check_settings() == []
    assert conf.config().partitions == 64


@pytest.mark.parametrize(("given", "words"), [
    ({"REDIS_ULR": "redis://x"}, "did you mean REDIS_URL?"),
    ({"RENEW_EVERY": 60}, "RENEW_EVERY: must be at most 30"),
    ({"LEASE_TTL": 10, "RENEW_EVERY": 10}, "a lease must outlive"),
    ({"PARTITIONS": 0}, "at least 1"),
    ({"PARTITIONS": "many"}, "whole number"),
    (["PARTITIONS"], "must be a dict"),
])
def test_impossible_settings_are_errors_with_the_mend(settings, given, words):
    settings.CHRONO_BEAT = given

    [error] = checks.check_settings()
    assert error.id == "chrono_beat.E001"
    assert words in error.msg


def test_every_wrong_setting_is_told(settings):
    settings.CHRONO_BEAT = {"HORIZN": 60, "LANES": 0, "REDIS_URL": ""}

    assert ids_of(checks.check_settings()) == ["chrono_beat.E001"] * 3


def test_naive_datetimes_are_refused(settings):
    settings.USE_TZ = False

    [error] = checks.check_settings()
    assert error.id == "chrono_beat.E002"


@pytest.mark.parametrize(("options", "told"), [
    ({}, True), ({"transaction_mode": "DEFERRED"}, True), ({"transaction_mode": "immediate"}, False),
    ({"transaction_mode": "EXCLUSIVE"}, False),
])
def test_an_sqlite_database_that_begins_late_is_warned_of(monkeypatch, options, told):
    monkeypatch.setitem(settings.DATABASES, "default", {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": options})

    assert ids_of(checks.check_settings()) == ["chrono_beat.W001"] * told


def test_other_engines_are_not_warned_of(monkeypatch):
    monkeypatch.setitem(settings.DATABASES, "default", {"ENGINE": "django.db.backends.postgresql"})

    assert checks.check_settings() == []


@pytest.mark.django_db
def test_numbers_other_than_the_migrated_ones_are_errors(settings):
    Deployment.objects.update_or_create(id=1, defaults={"partitions": 8, "lanes": 1})
    settings.CHRONO_BEAT = {"PARTITIONS": 8, "LANES": 1}
    assert checks.check_layout(databases=["default"]) == []

    settings.CHRONO_BEAT = {"PARTITIONS": 16, "LANES": 2}
    found = checks.check_layout(databases=["default"])

    assert ids_of(found) == ["chrono_beat.E003", "chrono_beat.E004"]
    assert "migrated with 8" in found[0].msg
    assert checks.check_layout(databases=None) == checks.check_layout(databases=["other"]) == []


@pytest.mark.django_db
def test_a_database_before_its_first_migrate_is_fine(settings, monkeypatch):
    Deployment.objects.all().delete()
    assert checks.check_layout(databases=["default"]) == []

    monkeypatch.setattr(Deployment._meta, "db_table", "not_there_yet")
    assert checks.check_layout(databases=["default"]) == []


def test_wrong_settings_are_told_once(settings):
    settings.CHRONO_BEAT = {"PARTITIONS": -1}

    assert checks.check_layout(databases=["default"]) == []


def test_the_application_registers_its_checks():
    """In a process of its own, since this module has imported them already."""
    command = [sys.executable, "-m", "django", "check", "--list-tags"]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": os.getcwd()}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    assert checks.TAG in told.stdout.split()
