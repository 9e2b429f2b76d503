"""Targets other than drawn tasks on the whole path: from a job in the database to what a receiver and a stock queue got."""
import pytest

from chrono_beat.testing.patience import eventually

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(180)]

YEARLY = "0 0 1 1 *"


def ended(site, job):
    def rows():
        found = site.sql("SELECT * FROM chrono_execution WHERE job_id = %s ORDER BY attempt", job)
        return found if found and all(row["finished_at"] for row in found) else None

    return eventually(rows, 30, what="an end")


def test_a_message_is_handed_over_and_a_call_inside_is_refused_for_good(site):
    site.dispatchers(1)
    mail, inside = (made["id"] for made in site.ask("create", definitions=[
        {"name": "a message", "task": "shop.clean_up", "queue": "celery", "cron": YEARLY},
        {"name": "a call inside", "url": "https://localhost:1/", "cron": YEARLY},
    ]))

    for job in (mail, inside):
        site.ask("trigger", job=job)

    [row] = ended(site, mail)
    assert (row["state"], row["reason"], row["result"]) == ("succeeded", "handed_over", "handed over to celery")
    [row] = ended(site, inside)
    assert (row["state"], row["reason"]) == ("dead", "error") and "HTTP_ALLOWED_ADDRESSES" in row["error"]
    site.ask("delete", ids=[mail, inside])
