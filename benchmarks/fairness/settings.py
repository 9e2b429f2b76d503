"""Django's and Celery's settings of the site that is flooded; where its servers are comes from the environment."""
import json
import os

SECRET_KEY = "for-benchmarks-only"
USE_TZ = True
TIME_ZONE = "UTC"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "chrono_beat_django"]
DATABASES = {"default": json.loads(os.environ["FAIRNESS_DATABASE"])}

CELERY_BROKER_URL = os.environ["FAIRNESS_REDIS"] + "/0"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1

CHRONO_BEAT = {"REDIS_URL": os.environ["FAIRNESS_REDIS"] + "/1"}
