"""Which tenants a metric names."""
from chrono_beat.core.tenant_labels import OTHER, RANK_EVERY, WATCHED_FOR_ONE_NAME, TenantLabels, top


def test_the_first_tenants_are_named_while_there_is_room():
    labels = TenantLabels(2)
    labels.note({"a": 1})
    labels.note({"b": 1, "c": 5})

    assert [labels.of(tenant) for tenant in "abc"] == ["a", "b", OTHER]


def test_a_tenant_that_has_become_busier_takes_the_name_of_the_quietest():
    labels = TenantLabels(2)
    labels.note({"a": 50, "b": 10})

    lost = labels.note({"c": RANK_EVERY})

    assert lost == ["b"]
    assert [labels.of(tenant) for tenant in "abc"] == ["a", OTHER, "c"]


def test_two_that_are_alike_do_not_take_a_name_in_turns():
    labels = TenantLabels(1)

    assert [labels.note({"a": RANK_EVERY // 4, "b": RANK_EVERY // 3}) for _ in range(20)] == [[]] * 20
    assert labels.of("a") == "a"


def test_a_name_follows_what_happens_of_late():
    labels = TenantLabels(1)
    labels.note({"a": 20 * RANK_EVERY})

    lost = [tenant for _ in range(8) for tenant in labels.note({"b": RANK_EVERY})]

    assert (lost, labels.of("b")) == (["a"], "b")


def test_what_is_watched_is_bounded_with_ten_thousand_tenants():
    labels = TenantLabels(3)
    for number in range(10_000):
        labels.note({f"t{number}": 1, "busy": 3})

    assert labels.of("busy") == "busy"
    assert len(labels._counts) <= 2 * WATCHED_FOR_ONE_NAME * 3
    assert len({labels.of(f"t{number}") for number in range(10_000)} | {labels.of("busy")}) <= 4


def test_no_tenant_is_named_where_none_is_to_be_and_none_is_named_other():
    none, one = TenantLabels(0), TenantLabels(1)
    for labels in (none, one):
        labels.note({"": 5, OTHER: 7, "a": RANK_EVERY})

    assert [none.of("a"), none.of(""), one.of("a"), one.of("")] == [OTHER, OTHER, "a", OTHER]
    assert one.of(OTHER) == OTHER


def test_the_top_of_figures_leaves_their_sum_as_it_is():
    figures = {"a": 5, "b": 9, "c": 1, OTHER: 4}

    assert top(figures, 2) == {"b": 9, "a": 5, OTHER: 5}
    assert top(figures, 0) == {OTHER: 19}
    assert top({"a": 1}, 1) == {"a": 1}
    assert top({}, 3) == {}
