"""Django's settings for all tests: SQLite in a file, or the PostgreSQL that CHRONO_TEST_DSN names.

Zone data come from the package ``tzdata`` alone, so that a test sees the same transitions on every machine. That is set
here, before any app is loaded: some of them list all zones once, and look each up later.
"""
import atexit
import os
import shutil
import tempfile
import zoneinfo
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

zoneinfo.reset_tzpath(to=())

SQLITE_OPTIONS = {
    "timeout": 20,
    "transaction_mode": "IMMEDIATE",
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}


def postgres_database(dsn: str) -> dict[str, Any]:
    """Return Django's settings of ``postgresql://user:password@host:port/name?key=value``."""
    url = urlsplit(dsn)
    options = dict(parse_qsl(url.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.path.lstrip("/"),
        "USER": unquote(url.username or ""),
        "PASSWORD": unquote(url.password or ""),
        "HOST": options.pop("host", url.hostname or ""),
        "PORT": str(url.port or ""),
        "OPTIONS": options,
    }


def sqlite_database(path: str | Path) -> dict[str, Any]:
    """Return Django's settings of a SQLite file, as chrono_beat wants them."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "OPTIONS": SQLITE_OPTIONS,
        "TEST": {"NAME": str(path)},
    }


DSN = os.environ.get("CHRONO_TEST_DSN", "")
DIRECTORY = Path(tempfile.gettempdir()) / f"chrono_beat_tests_{os.getpid()}"
if not DSN:
    DIRECTORY.mkdir(exist_ok=True)
    atexit.register(shutil.rmtree, DIRECTORY, ignore_errors=True)

DATABASES = {"default": postgres_database(DSN) if DSN else sqlite_database(DIRECTORY / "tests.sqlite3")}
SECRET_KEY = "for tests only"
DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.urls"
STATIC_URL = "/static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_celery_beat",
    "django_celery_results",
    "chrono_beat_django.apps.ChronoBeatConfig",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "APP_DIRS": True,
    "OPTIONS": {"context_processors": [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]},
}]
CHRONO_BEAT: dict[str, Any] = {"PARTITIONS": 8}
