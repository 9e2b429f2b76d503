"""``chrono tenants …`` and ``chrono keys …`` as a user types them."""
import json

import pytest

from chrono_beat_django import wiring
from chrono_beat_django.models import AlertMute, ApiKey, Job, Tenant
from tests.commands.test_commands import AwayQueue

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]


def test_a_tenant_lives_from_create_to_delete(run):
    assert run("tenants", "create", "acme", "--weight", "3", "--max-jobs", "5") == "created acme\n"
    assert run("tenants", "update", "acme", "--weight", "4") == "updated acme\n"
    told = {row["slug"]: row for row in json.loads(run("tenants", "list", "--json"))}
    assert (told["acme"]["weight"], told["acme"]["max_jobs"]) == (4, 5)
    run("jobs", "create", "nightly", "--tenant", "acme", "--task", "shop.report", "--cron", "0 2 * * *")
    assert json.loads(run("tenants", "show", "acme", "--json"))["jobs"] == 1

    run("tenants", "pause", "acme")
    assert Tenant.objects.get(slug="acme").paused
    run("tenants", "resume", "acme", "--missed", "latest")
    assert not Tenant.objects.get(slug="acme").paused
    run("tenants", "move", "acme", "chrono.big")
    assert Tenant.objects.get(slug="acme").pool == "chrono.big"
    run("tenants", "delete", "acme", status=1)                              # nobody said yes
    assert Job.objects.count() == 1
    assert "deleted acme" in run("tenants", "delete", "acme", "--yes")
    assert not Tenant.objects.filter(slug="acme").exists()


def test_a_tenant_that_stays_for_want_of_redis_is_not_called_deleted(run):
    run("tenants", "create", "acme")
    run("tenants", "pause", "acme")
    with wiring.override(queue=AwayQueue()):
        said = run("tenants", "delete", "acme", "--yes", status=1)

    assert "acme has no jobs any more, but stays, paused" in said and "deleted acme" not in said
    assert Tenant.objects.get(slug="acme").paused


def test_programs_are_told_of_every_change(run, nightly):
    trigger = json.loads(run("jobs", "trigger", "nightly", "--json"))
    for line, told in (
        (f"executions cancel {trigger['execution']}", {"id": trigger["execution"], "told_to_stop": []}),
        ("tenants create acme", {"slug": "acme"}),
        ("tenants pause acme", {"slug": "acme", "still_running": []}),
        ("tenants resume acme", {"slug": "acme"}),
        ("tenants move acme chrono.big", {"slug": "acme", "pool": "chrono.big", "still_running": []}),
        ("tenants delete acme --yes", {"slug": "acme", "deleted": True, "still_running": []}),
        ("alerts mute --kind missed", {"kind": "missed"}),
        ("alerts unmute MUTE", {}),
        ("keys create default", {"tenant": "default", "scopes": "read"}),
        ("keys rotate KEY", {"tenant": "default", "scopes": "read"}),
        ("keys revoke KEY", {"tenant": "default"}),
    ):
        key = ApiKey.objects.order_by("id").values_list("prefix", flat=True).first() or ""
        mute = AlertMute.objects.values_list("id", flat=True).first() or 0
        said = json.loads(run(*line.replace("KEY", key).replace("MUTE", str(mute)).split(), "--json"))
        assert {name: said[name] for name in told} == told, line
        assert ("secret" in said) is line.startswith(("keys create", "keys rotate")), line


def test_a_wrong_limit_names_its_field(run):
    assert "Error: weight: " in run("tenants", "create", "acme", "--weight", "0", status=2)
    assert "acme" in run("tenants", "show", "acme", status=3)


def test_a_key_is_shown_once_and_never_listed(run):
    made = run("keys", "create", "default", "--scope", "write", "--expires-in", "90d")
    secret = made.split()[0]
    prefix = ApiKey.objects.get().prefix
    new = run("keys", "rotate", prefix, "--overlap", "1h").split()[0]
    assert run("keys", "revoke", prefix) == f"revoked {prefix}\n"

    listed = run("keys", "list"), run("keys", "list", "--tenant", "default", "--json")
    assert secret.startswith(f"chrono_{prefix}_") and new != secret
    for text in listed:
        assert prefix in text
        assert not any(hidden.split("_", 2)[2] in text for hidden in (secret, new))
    assert [bool(row["revoked_at"]) for row in sorted(json.loads(listed[1]), key=lambda row: row["prefix"] != prefix)] == [
        True, False]
    run("keys", "revoke", "nothing", status=3)
    assert "Error: scope: " in run("keys", "create", "default", "--scope", "everything", status=2)
