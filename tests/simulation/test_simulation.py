"""The simulation: it repeats itself, finds the system as promised, and would notice if it were not."""

import os

import pytest

from chrono_beat.testing.history import LeaseEnded, Published, Row, Sent
from chrono_beat.testing.simulation import Simulation, simulate
from chrono_beat.testing.simulation.__main__ import main
from chrono_beat.testing.simulation.capped import TENANTS
from chrono_beat.testing.simulation.scenario import THEMES
from tests.simulation.mutations import KNOWN

SEEDS = int(os.environ.get("CHRONO_SIMULATION_SEEDS", "1000"))
"""How many seeds are run; many more at night."""

BATCHES = 20
CAP_SEEDS = 17


@pytest.mark.parametrize("batch", range(BATCHES))
def test_whatever_goes_wrong_every_promise_is_kept(batch):
    bad = [f"seed {seed}: {result.verdict.word} {list(map(str, result.verdict.findings))[:3]} {result.surprises[:2]}"
           for seed in range(batch, SEEDS, BATCHES) if not (result := simulate(seed)).ok]

    assert not bad, "\n".join([*bad, "python -m chrono_beat.testing.simulation --trace --seed … shows what happened"])


def test_a_seed_brings_back_the_same_course():
    first, second = simulate(17), simulate(17)

    assert first.history.events == second.history.events
    assert first.notes == second.notes


def test_every_theme_has_faults_and_runs():
    for seed, theme in enumerate(THEMES):
        result = simulate(seed + 5 * len(THEMES))

        assert result.scenario.theme == theme
        assert result.history.of(Row)
        assert any(event.reply == "published" for event in result.history.of(Published))


def test_inv08_no_tenant_runs_more_than_its_cap_over_a_thousand_kills():
    """R162: three workers on two lanes and two pools, with retries, reaps, replays, lost memories, plain tasks and moves. The
    judge counts leases that are held, at each one that is added; to nothing does it grant an excuse."""
    results = [simulate(seed, "caps") for seed in range(CAP_SEEDS)]

    assert [result.verdict.findings[:2] or result.surprises for result in results if not result.ok] == []
    assert sum(result.kills for result in results) >= 1000
    assert max(result.most_running["paid"] for result in results) == TENANTS["paid"], "the caps were reached"
    assert any(event.why == "expired" for result in results for event in result.history.of(LeaseEnded))
    assert any(result.history.of(Sent) for result in results)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.mutation.__name__)
def test_a_mistake_is_noticed(known, monkeypatch):
    """A mutation that is not caught is a hole in the scenarios or in the checker."""
    for scenario in known.scenarios():
        with monkeypatch.context() as patch:
            known.mutation(patch.setattr)
            mutated = Simulation(scenario()).run()
        if known.what in {found.what for found in mutated.verdict.findings}:
            clean = Simulation(scenario()).run()
            if (clean.verdict.word, clean.verdict.findings) == ("valid", ()):
                return

    raise AssertionError(f"neither {known.shown_by} nor another seed shows it")


def test_the_command_prints_a_trace(capsys):
    assert main(["--seed", "3", "--trace"]) == 0

    shown = capsys.readouterr().out
    assert "granted execution_id=" in shown
    assert "seed 3 (pauses): valid" in shown
