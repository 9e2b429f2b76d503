"""Django's and Celery's settings of what is tormented. Leases are short, so that a minute sees several of them run out."""
import json
import os

LEASE_SECONDS = 6.0
PARTITION_LEASE_SECONDS = 4.0

SECRET_KEY = "for-benchmarks-only"
USE_TZ = True
TIME_ZONE = "UTC"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "chrono_beat_django"]
DATABASES = {"default": json.loads(os.environ["CHAOS_DATABASE"])}

CELERY_BROKER_URL = os.environ["CHAOS_REDIS"] + "/0"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_TASK_IGNORE_RESULT = True

CHRONO_BEAT = {
    "REDIS_URL": os.environ["CHAOS_REDIS"] + "/1",
    "LEASE_TTL": LEASE_SECONDS,
    "RENEW_EVERY": LEASE_SECONDS / 3,
    "PARTITION_LEASE_TTL": PARTITION_LEASE_SECONDS,
    "PARTITION_RENEW_EVERY": PARTITION_LEASE_SECONDS / 5,
    "HORIZON": 30,
}
