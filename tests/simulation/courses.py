"""Courses of events that chance does not bring, each with the steps that a rule of the protocol is for.

A course is a scenario with fixed jobs and fixed faults, judged like any other: it is valid, and it is not once its rule is
left out. Jobs of a period P are due one second after the start, and then every P seconds.
"""

from dataclasses import replace

from chrono_beat.core.records import RetryPolicy
from chrono_beat.testing.simulation.scenario import SECOND_US, Mishap, Scenario, Wish
from chrono_beat.testing.simulation.worker import Habits


def _course(theme, *, period, seconds=1.0, **fields):
    length_us = round(seconds * SECOND_US)
    job = {"name": theme, "tenant": "default", "task": "tests.body", "expression": str(period), "concurrency": "forbid"}
    habits = {"tests.body": Habits(length_us, length_us)}
    return Scenario(seed=0, theme=theme, jobs=[job], habits=habits, **fields)


def _next(at, call, how, seconds=0.0):
    return Mishap(round(at * SECOND_US), "next", round(seconds * SECOND_US), call=call, how=how)


def publish_past_a_tombstone():
    """A publish arrives when its execution was published by a successor, has ended and is forgotten (rule 3)."""
    return _course("deadline", period=40, faults_us=125 * SECOND_US, mishaps=[_next(30, "publish", "still before", 75)])


def publish_after_a_skip():
    """A publish comes again that was answered "skipped", but nobody heard it; the run in its way has ended by then (rule 11)."""
    return _course("decision", period=3, seconds=4.0, mishaps=[
        _next(3.5, "publish", "lost reply"), _next(3.5, "publish", "slow before", 2)])


def edit_before_a_late_claim():
    """A claim arrives when its partition has another owner and its job another plan (guards of the claim)."""
    return _course("claim", period=30, horizon=5.0, mishaps=[_next(20, "claim", "still before", 15)],
                   wishes=[Wish(28 * SECOND_US, "edit", 0, {"expression": "4"})])


def edit_before_a_slow_claim():
    """The planner waits for a claim while firing goes on, and the job is edited before the claim is carried out."""
    return replace(edit_before_a_late_claim(), theme="commit", horizon=1.0,
                   mishaps=[_next(20, "claim", "slow before", 4)],
                   wishes=[Wish(32 * SECOND_US, "edit", 0, {"expression": "4"})])


def edit_before_a_retry():
    """An attempt has failed, and before the next one is due the job's schedule is edited (rules 7 and 8)."""
    course = _course("retry", period=40, wishes=[Wish(4 * SECOND_US, "edit", 0, {"expression": "45"})])
    course.habits["tests.body"] = replace(course.habits["tests.body"], fails=1.0)
    course.jobs[0]["retry"] = RetryPolicy(2, True, 6.0, 2.0, 20.0, 0.0)
    return course
