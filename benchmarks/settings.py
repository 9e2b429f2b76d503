"""Django's settings for the benchmarks; the database and Redis come from the environment that a benchmark sets."""
import json
import os

SECRET_KEY = "for-benchmarks-only"
USE_TZ = True
TIME_ZONE = "UTC"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "chrono_beat_django"]
DATABASES = {"default": json.loads(os.environ["BENCHMARK_DATABASE"])}
CHRONO_BEAT = {
    "REDIS_URL": os.environ["BENCHMARK_REDIS_URL"],
    **json.loads(os.environ.get("BENCHMARK_CHRONO_BEAT", "{}")),
}
