"""When a tenant is crowded by another one, and when it only looks so."""
import pytest

from chrono_beat.core.crowding import DEPLOYMENT, Load, TenantLoad, find, is_over, together
from chrono_beat.core.rollup import histogram

SECOND = 1_000_000


def load(starts, late_seconds, **counts):
    return Load(starts, lateness=histogram([int(late_seconds * SECOND)] * starts), **counts)


def tenant(name, *, now=(50, 0.2), before=(600, 0.2), objective=None):
    return TenantLoad(name, load(*now), load(*before), objective)


CALM = [tenant("acme"), tenant("globex", now=(25, 0.2), before=(300, 0.2))]
FLOOD = tenant("globex", now=(900, 9), before=(300, 0.2))


def told(loads):
    return [(finding.event, finding.tenant) for finding in find(loads)]


def test_a_tenant_is_crowded_by_the_one_whose_share_of_starts_rose_while_its_own_starts_became_late():
    finding, = find([tenant("acme", now=(50, 4)), FLOOD, tenant("initech")])

    assert (finding.event, finding.tenant, finding.fields["by"]) == ("crowded", "acme", "globex")
    assert (finding.fields["p99_us"], finding.fields["usual_us"]) == (
        pytest.approx(4 * SECOND, rel=0.021), pytest.approx(0.2 * SECOND, rel=0.021))


@pytest.mark.parametrize(("why", "loads"), [
    ("nothing happens", CALM),
    ("the flood makes nobody late", [tenant("acme"), FLOOD]),
    ("it floods itself", [tenant("acme", now=(900, 9)), tenant("globex", now=(25, 0.2), before=(300, 0.2))]),
    ("all are late together", [tenant("acme", now=(50, 9)), tenant("globex", now=(25, 9), before=(300, 0.2))]),
    ("it was as late before", [tenant("acme", now=(50, 4), before=(600, 3)), FLOOD]),
    ("it is late by less than a second more", [tenant("acme", now=(50, 0.9)), FLOOD]),
    ("too few of its starts say so", [tenant("acme", now=(19, 9)), FLOOD]),
    ("nobody knows how it was before", [tenant("acme", now=(50, 9), before=(5, 0.2)), FLOOD]),
    ("the other one has a small part still", [
        tenant("acme", now=(50, 9)), tenant("big", now=(2_000, 0.2), before=(24_000, 0.2)),
        tenant("globex", now=(300, 9), before=(0, 0))]),
])
def test_a_tenant_is_not_crowded_where(why, loads):
    assert "crowded" not in [event for event, _ in told(loads)]


def test_crowding_is_over_below_twice_the_norm_of_when_it_was_told():
    finding, = find([tenant("acme", now=(50, 20), before=(600, 5)), FLOOD])

    assert not is_over(finding, tenant("acme", now=(50, 11), before=(600, 19)))
    assert is_over(finding, tenant("acme", now=(50, 9)))
    assert is_over(finding, TenantLoad("acme"))


def test_an_objective_is_broken_while_the_p99_is_above_it_and_an_idle_tenant_has_not_met_it():
    broken = tenant("acme", now=(10, 4), objective=3 * SECOND)
    finding, = find([broken])

    assert finding.event == "lateness_objective_broken"
    assert not is_over(finding, TenantLoad("acme", usual=load(3, 4), objective_us=3 * SECOND))
    assert is_over(finding, tenant("acme", now=(10, 2), objective=3 * SECOND))
    assert is_over(finding, tenant("acme", now=(10, 4)))
    assert told([tenant("acme", now=(10, 2), objective=3 * SECOND), tenant("other", now=(10, 99))]) == []


def test_an_objective_that_is_met_exactly_is_not_broken_by_the_rounding_of_histograms():
    for ms in range(1_000, 60_000, 777):
        assert told([tenant("acme", now=(10, ms / 1_000), objective=ms * 1_000)]) == []


@pytest.mark.parametrize(("duplicates", "before", "high"), [(10, 0, True), (10, 90, False), (4, 0, False)])
def test_duplicates_are_high_where_there_are_some_and_more_than_usual(duplicates, before, high):
    loads = [TenantLoad("acme", Load(50, 60, duplicates), Load(600, 690, before))]

    assert told(loads) == ([("duplicates_high", "acme")] if high else [])


def test_duplicates_are_usual_again_with_a_share_below_twice_the_norm():
    finding, = find([TenantLoad("acme", Load(50, 60, 20), Load(600, 630, 30))])

    assert not is_over(finding, TenantLoad("acme", Load(50, 60, 7)))
    assert is_over(finding, TenantLoad("acme", Load(50, 60, 3)))


def reaping(name, recent, before):
    return TenantLoad(name, Load(reaps=recent), Load(reaps=before))


@pytest.mark.parametrize(("recent", "before", "high"), [
    (5, 0, True), (4, 0, False), (9, 36, True), (8, 36, False), (200, 1200, False), (300, 1200, True)])
def test_reaps_are_high_where_there_are_some_and_three_times_as_many_as_usual_in_five_minutes(recent, before, high):
    assert told([reaping("acme", recent, before)]) == ([("reaps_high", "acme")] if high else [])


def test_workers_that_die_under_many_tenants_are_told_of_the_deployment():
    loads = [reaping(f"t{number}", 2, 3) for number in range(6)]
    finding, = find(loads)

    assert (finding.event, finding.tenant, finding.fields) == ("reaps_high", DEPLOYMENT, {"reaps": 12, "usual": 1.5})
    assert not is_over(finding, together([reaping("t0", 3, 0), reaping("t1", 2, 0)]))
    assert is_over(finding, together([reaping("t0", 4, 0)]))


def test_reaps_of_one_tenant_alone_are_told_of_it_alone_and_until_they_are_below_twice_the_norm():
    finding, = find([reaping("acme", 40, 120), reaping("globex", 0, 7)])

    assert (finding.tenant, finding.fields["usual"]) == ("acme", 10.0)
    assert not is_over(finding, reaping("acme", 20, 120))
    assert is_over(finding, reaping("acme", 19, 120))
    assert is_over(finding, TenantLoad("acme"))
