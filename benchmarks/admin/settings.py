"""Django's settings of the measured site: the admin beside what other benchmarks have."""
from benchmarks.settings import *  # noqa: F403
from benchmarks.settings import INSTALLED_APPS as _APPS

ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "benchmarks.admin.urls"
STATIC_URL = "/static/"
INSTALLED_APPS = ["django.contrib.admin", "django.contrib.messages", "django.contrib.sessions", *_APPS]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {"context_processors": [
        "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages"]},
}]
