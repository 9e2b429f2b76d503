"""What a program that runs ``celery -A proj chrono …`` gets told by the exit status, and a shell that asks for completions."""
import io
import json
import re
import runpy
import shlex
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner
from django.db import OperationalError

from chrono_beat.celery.commands import chrono, completion, options, output, progress
from chrono_beat.core.errors import StoreUnavailable
from chrono_beat_django import doctor, jobs, wiring
from chrono_beat_django.models import Execution, Job, Tenant
from tests.commands.conftest import app
from tests.commands.test_commands import AwayQueue

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]
DOCS = Path(__file__).resolve().parents[2] / "docs"

GHOST = "6f9a1f0e-3d52-4f0b-9c3e-0a4c5b6d7e8f:20260107T120000Z:1"
LINES = (
    (0, "jobs list"), (0, "executions list"), (0, "dead list"), (0, "alerts list"), (0, "tenants list"), (0, "keys list"),
    (0, "forecast"), (0, "transitions"), (0, "zones"), (0, "sync"), (0, "top"), (0, "import beat-schedule"), (0, "shadow"),
    (1, "doctor"), (1, f"dead replay {GHOST}"), (1, "jobs delete nightly"), (1, "tenants delete default"),
    (2, "jobs"), (2, "jobs create x"), (2, "jobs create x --every soon"), (2, "jobs create x --task t --cron 61"),
    (2, "jobs update nightly"), (2, "jobs update nightly --priority 11"), (2, "jobs list --limit 0"), (2, "jobs history"),
    (2, "jobs preview nightly --count 0"), (2, "jobs backfill nightly yesterday today"), (2, "jobs resume nightly --missed some"),
    (2, "executions list --state runing"), (2, "dead replay"), (2, "alerts mute --kind mised"), (2, "top --by luck"),
    (2, "keys create default --scope everything"), (2, "tenants create x --weight 0"), (2, "forecast --hours 0"),
    (2, "transitions --zone Mars/Base"), (2, "import crontab"), (2, "run --roles dance"),
    (3, "jobs show ghost"), (3, "jobs update ghost --priority 1"), (3, "jobs pause ghost"), (3, "jobs resume ghost"),
    (3, "jobs trigger ghost"), (3, "jobs delete ghost --yes"), (3, "jobs preview ghost"), (3, "jobs history ghost"),
    (3, "jobs backfill ghost 2026-01-01T00:00Z 2026-01-02T00:00Z"), (3, "jobs create x --task t --every 1h --tenant nobody"),
    (3, f"executions show {GHOST}"), (3, f"executions cancel {GHOST}"), (3, "tenants show nobody"),
    (3, "tenants update nobody --weight 2"), (3, "tenants pause nobody"), (3, "keys revoke nothing"), (3, "alerts close 1"),
    (3, "alerts unmute 1"), (3, "alerts mute --tenant nobody"), (3, "forecast -t nobody"), (3, "transitions -t nobody"),
    *((3, f"{words} -t nobody") for words in (
        "jobs list", "executions list", "dead list", "dead replay --all", "alerts list", "alerts list --mutes", "keys list",
        "jobs go-live --all", "shadow report")),
    (2, "--loud"), (2, "shadow --tolerance nan"),
    (2, "alerts mute --for 99999999d"), (2, "dead list --reason eror"),
    (4, "jobs create nightly --task t --every 1h"), (4, "jobs update nightly --if-version 7 --priority 1"),
    (4, "jobs update nightly --rename taken"), (4, "executions cancel LAST"), (4, "tenants create default"),
    (4, "jobs create x --tenant full --task t --every 1h"),
)


@pytest.fixture
def lines(nightly):
    """(status, words) of LINES; one life for all, for none changes what the others are about."""
    jobs.create(name="taken", task="t", every=3_600)
    jobs.trigger(nightly)
    Execution.objects.update(state="succeeded", finished_at="2026-01-01T00:00:00Z")
    Tenant.objects.create(slug="full", max_jobs=0)
    last = Execution.objects.get().id
    return [(status, line.replace("LAST", last).split(" ")) for status, line in LINES]


def test_every_command_leaves_with_the_status_of_the_table(run, lines):
    for status, words in lines:
        run(*words, status=status)

    assert {status for status, _ in LINES} == {*output.STATUSES}
    assert Job.objects.count() == 2


def test_a_program_gets_one_json_value_also_where_something_is_wrong(lines):
    machine = {path for path, command in commands(chrono) if any(option.name == "machine" for option in command.params)}
    assert {path for path, _ in commands(chrono)} - machine == {("run",)}
    told = 0
    for status, words in lines:
        if words[0] == "run":
            continue
        done = CliRunner().invoke(chrono, [*words, "--json"], obj=SimpleNamespace(app=app))

        assert done.exit_code == status, (words, done.output)
        answer = json.loads(done.stdout)
        if status > 1:
            told += 1
            assert answer["error"]["status"] == status, words
            assert all(problem["message"] in done.stderr for problem in answer["error"]["problems"]), words
    assert told > 30


def test_the_option_is_named_as_it_is_typed(queue):
    Tenant.objects.create(slug="acme")
    for line, field in (
            ("executions list --from yesterday", "from"), ("executions list --to tomorrow", "to"),
            ("executions list --to 2026-01-01T00:00Z", "to"),
            ("dead list --older 999999d", "older"), ("dead list --older -5m", "older"),
            ("alerts mute --for 99999999d", "for"), ("keys create acme --scope all", "scope"),
            ("shadow --for nan", "for"), ("jobs list --task \udcff", "task"), ("keys create acme --scope \udcff", "scope")):
        done = CliRunner().invoke(chrono, [*line.split(), "--json"], obj=SimpleNamespace(app=app))

        [problem] = json.loads(done.stdout)["error"]["problems"]
        assert (done.exit_code, problem["field"]) == (2, field), line
        assert field in done.stderr


def test_what_a_deleted_tenant_left_is_listed(run):
    Tenant.objects.create(slug="gone")
    jobs.trigger(jobs.create(name="x", tenant="gone", task="t", every=3_600))
    run("tenants", "delete", "gone", "--yes")

    assert "gone" in run("executions", "list", "--tenant", "gone")
    run("jobs", "list", "--tenant", "gone", status=3)


def test_bytes_that_are_no_text_are_said_to_be_so(run):
    assert run("jobs", "show", "\udcff", status=2) == "Error: name: is no UTF-8 text\n"


class Terminal(io.StringIO):
    """Standard output where it is a terminal."""

    def isatty(self):
        return True


def test_a_table_folds_on_a_narrow_terminal_and_cuts_nothing(monkeypatch, capsys):
    rows = [("acme", "x" * 30, GHOST), ("globex", "y" * 50, "")]
    output.table(("tenant", "job", "id"), rows)
    assert len(capsys.readouterr().out.splitlines()) == 3                   # no terminal: a row is a line

    terminal = Terminal()
    with monkeypatch.context() as patched:
        patched.setenv("COLUMNS", "80")
        patched.setattr("sys.stdout", terminal)
        output.table(("tenant", "job", "id"), rows)

    said = [click.unstyle(line) for line in terminal.getvalue().splitlines()]
    assert [line.split() for line in said] == [
        ["tenant", "job"], ["id"], ["acme", "x" * 30], [GHOST], ["globex", "y" * 50]]
    assert said[3].startswith(output.INDENT)
    assert max(map(len, said)) <= 80


def test_colours_are_for_terminals_that_want_them(nightly, monkeypatch):
    def listed(**how):
        return CliRunner().invoke(chrono, ["jobs", "list"], obj=SimpleNamespace(app=app), **how).output

    assert "\x1b[" in listed(color=True)                                    # a terminal
    assert "\x1b[" not in listed()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in listed(color=True)


def test_the_statuses_stand_in_the_documentation_as_they_are():
    text = (DOCS / "commands.rst").read_text(encoding="utf-8")
    for status, meaning in output.STATUSES.items():
        assert re.search(rf"^{status} +{re.escape(meaning)}$", text, re.MULTILINE), status


def test_what_does_not_answer_is_trouble(run, nightly, monkeypatch):
    with wiring.override(queue=AwayQueue()):
        assert "Redis could not be told" in run("jobs", "update", "nightly", "--priority", "1", status=1)
        assert "Redis does not answer: what runs and waits is not known" in run("tenants", "show", "default")



@pytest.mark.parametrize("known_to_the_store", [False, True])
def test_tables_that_are_missing_are_named_with_the_mend(run, monkeypatch, known_to_the_store):
    def refuse(*_, **__):
        missing = OperationalError("no such table: chrono_job")
        if known_to_the_store:
            raise StoreUnavailable("the database broke off") from missing
        raise missing

    said = "the database has not the tables of this release: run manage.py migrate"
    monkeypatch.setattr(jobs, "list", refuse)
    assert f"Error: {said}" in run("jobs", "list", status=1)
    monkeypatch.setattr(doctor, "CHECKS", {"database": refuse})
    [finding] = json.loads(run("doctor", "--json", status=1))
    assert finding["message"].startswith(said)


def completions(*words):
    """What a shell is offered for the last of the words."""
    group = click.Group("celery", commands={"chrono": chrono}, params=[click.Option(["-A", "--app"])])
    complete = BashComplete(group, {"obj": SimpleNamespace(app=app)}, "celery", "_CELERY_COMPLETE")
    return [item.value for item in complete.get_completions(["chrono", *words[:-1]], words[-1])]


def test_commands_options_choices_tenants_and_jobs_complete(queue):
    Tenant.objects.create(slug="acme")
    for number in range(3):
        jobs.create(name=f"nightly {number}", task="t", every=3_600, tenant="acme")
    jobs.create(name="hourly", task="t", every=3_600)

    assert completions("jobs", "up") == ["update"]
    assert "--exclusion-group" in completions("jobs", "create", "x", "--ex")
    assert completions("jobs", "create", "x", "--misfire", "") == ["skip", "latest", "all"]
    assert completions("jobs", "list", "--tenant", "a") == ["acme"]
    assert completions("jobs", "show", "") == ["hourly"]
    assert completions("jobs", "show", "--tenant", "acme", "night") == [f"nightly {number}" for number in range(3)]


def test_completion_is_bounded_and_a_database_that_is_away_completes_nothing(queue, monkeypatch):
    jobs.create(name="hourly", task="t", every=3_600)
    jobs.create(name="daily", task="t", every=86_400)
    monkeypatch.setattr(completion, "MOST", 1)
    assert completions("jobs", "show", "") == ["daily"]

    monkeypatch.setattr(jobs, "list", lambda *_, **__: 1 / 0)
    assert completions("jobs", "show", "") == []


def test_progress_is_for_people_at_a_terminal_alone(monkeypatch, capsys):
    with progress.bar("work", machine=False, total=3) as went:              # standard error is a file here
        went()
    assert capsys.readouterr() == ("", "")

    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress.bar("work", machine=True, total=3) as went:
        went()
    assert capsys.readouterr() == ("", "")
    with progress.bar("work", machine=False, total=3) as went:
        went(2, total=4)
    told = capsys.readouterr()
    assert told.out == ""
    assert "work" in told.err and "2/4" in told.err


def test_a_backfill_goes_on_in_steps_up_to_its_limit(run, nightly, monkeypatch):
    monkeypatch.setattr("chrono_beat.celery.commands.jobs.STEP", 4)
    line = ["jobs", "backfill", "nightly", "2025-01-01T00:00Z", "2025-01-11T00:00Z", "--limit", "9", "--json"]

    told = json.loads(run(*line))

    assert (told["created"], told["existing"], told["left_out"]) == (9, 0, 1)
    assert Execution.objects.count() == 9
    assert json.loads(run(*line))["existing"] == 9


def commands(group, path=()):
    """(words, command) of everything that can be run."""
    for name, command in group.commands.items():
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


EXAMPLES = [shlex.split(line.partition("chrono ")[2]) for line in re.findall(
    r"^ +\$ celery -A proj (chrono .+)$", (DOCS / "commands.rst").read_text(encoding="utf-8"), re.MULTILINE)]


def test_every_command_has_an_example_in_the_documentation_and_every_example_is_one():
    shown = set()
    for words in EXAMPLES:
        group, context = chrono, click.Context(chrono)
        while isinstance(group, click.Group) and not (group.invoke_without_command and words[0].startswith("-")):
            group, context = group.commands[words[0]], context
            shown.add(words[0]) if not isinstance(group, click.Group) else None
            path, words = words[0], words[1:]
        group.make_context(path, words)                             # refuses an option or an argument that is none
    leaves = {words for words, _ in commands(chrono)}
    exampled = {words for words in leaves if any(tuple(given[:len(words)]) == words for given in EXAMPLES)}
    assert exampled == leaves


def test_every_option_stands_in_the_documentation_with_what_it_does():
    for words, command in commands(chrono):
        assert command.help, words
        assert all(option.help for option in command.params if isinstance(option, click.Option)), words
    page = runpy.run_path(str(DOCS / "write_options.py"))["page"]()
    assert (DOCS / "options.rst").read_text(encoding="utf-8") == page, "run python docs/write_options.py"


def test_the_table_of_options_has_no_flag_twice():
    flags = [said.flag for said in options.TABLE.values()]
    assert len({*flags}) == len(flags)
