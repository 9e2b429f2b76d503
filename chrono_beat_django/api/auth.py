"""Who calls: the key, its tenant and its scope. Nothing else says whose rows a request may see."""
from typing import Any

from django.http import HttpRequest
from ninja.security import HttpBearer

from chrono_beat_django import keys
from chrono_beat_django.api.problems import Refused
from chrono_beat_django.models import ApiKey


class Key(HttpBearer):
    """A key with a scope."""

    def __init__(self, scope: str) -> None:
        super().__init__()
        self.scope = scope

    def __call__(self, request: HttpRequest) -> ApiKey | None:
        """Return the key of a request. The base class logs a header that has no Bearer, and that may be a key."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        return self.authenticate(request, token) if scheme.lower() == "bearer" else None

    def authenticate(self, request: HttpRequest, token: str) -> ApiKey | None:
        """Return the key that is shown.

        Raises:
            Refused: it has not the scope.
        """
        found = keys.authenticate(token)
        if found is not None and self.scope not in found.scopes.split():
            raise Refused(403, f"this key has not the scope {self.scope}; use one that has", "Authorization", "scope")
        return found


READ, WRITE, OPERATE = Key("read"), Key("write"), Key("operate")


def tenant_of(request: Any) -> str:
    """Return the tenant whose rows this request is about."""
    return str(request.auth.tenant)


def actor_of(request: Any) -> str:
    """Return who it is, for the audit."""
    return f"key {request.auth.prefix}"
