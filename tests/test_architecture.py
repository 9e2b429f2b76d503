"""The import direction, and other rules that a reader relies on and that only hold if something checks them.

admin, api, commands → wiring → services, store, redis → ports, telemetry → core. Nothing is imported here: the source
is parsed, so a cycle or a missing library cannot hide a breach.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("chrono_beat", "chrono_beat_django")
LONGEST_MODULE_LINES = 500

# Module prefix -> (layer, group). A module imports what lies in a lower layer or in its own group, and nothing else of
# ours. The longest prefix counts; a prefix that ends in "*" also covers names that continue (store_partitions).
LAYERS = {
    "chrono_beat.core": (0, "core"),
    "chrono_beat.ports": (1, "ports"),
    "chrono_beat.telemetry": (1, "telemetry"),
    "chrono_beat.tracing": (1, "tracing"),
    "chrono_beat.host_clock": (1, "host_clock"),
    "chrono_beat.words": (1, "words"),
    "chrono_beat.services": (2, "services"),
    "chrono_beat.redis": (2, "redis"),
    "chrono_beat_django.models*": (2, "store"),
    "chrono_beat_django.store*": (2, "store"),
    "chrono_beat_django.migrations": (2, "store"),
    "chrono_beat_django.conf": (1, "conf"),
    "chrono_beat_django.wiring": (3, "wiring"),
    # Everything else is on top: admin, api, views, commands, the bootstep, the public names of the two packages.
    "chrono_beat_django": (4, "top"),
    "chrono_beat": (4, "top"),
}
# Where these libraries may be imported, by module prefix.
ONLY_IN = {
    "celery": ("chrono_beat.celery", "chrono_beat.targets", "chrono_beat_django"),
    "kombu": ("chrono_beat.celery", "chrono_beat.targets"),
    "redis": ("chrono_beat.redis", "chrono_beat.celery", "chrono_beat.testing", "chrono_beat_django.wiring"),
    "django": ("chrono_beat_django",),
    "croniter": ("chrono_beat.core",),
    "cron_descriptor": ("chrono_beat.words",),
}
CLOCK_CALLS = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today"}


class Import(NamedTuple):
    line: int
    name: str


def matches(module: str, prefix: str) -> bool:
    if prefix.endswith("*"):
        return module.startswith(prefix[:-1])
    return module == prefix or module.startswith(prefix + ".")


def place(module: str) -> tuple[int, str]:
    """The layer and the group of one of our modules."""
    return LAYERS[max((prefix for prefix in LAYERS if matches(module, prefix)), key=len)]


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[Import]:
    """Every import in a module, also those inside functions, with relative ones resolved and constant dynamic ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                parents = parents[: len(parents) - node.level + is_package]
                base = ".".join([*parents, base] if base else parents)
            # "from chrono_beat import redis" names a module, too: the longer name decides.
            for alias in node.names:
                yield Import(node.lineno, f"{base}.{alias.name}")
        elif isinstance(node, ast.Call) and called(node).rpartition(".")[2] in ("import_module", "__import__"):
            if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                yield Import(node.lineno, node.args[0].value)


def called(node: ast.Call) -> str:
    """The dotted name of what a call calls, as written; empty where it is not a name."""
    parts, target = [], node.func
    while isinstance(target, ast.Attribute):
        parts.append(target.attr)
        target = target.value
    return ".".join([target.id, *reversed(parts)]) if isinstance(target, ast.Name) else ""


def breaches(module: str, source: str, is_package: bool = False) -> list[str]:
    """What in the source of *module* goes against the direction of imports or, in the core, against its purity."""
    tree = ast.parse(source)
    found = []
    for line, name in imports(tree, module, is_package):
        found += [f"{module}:{line} {why}" for why in forbidden(module, name)]
    if matches(module, "chrono_beat.core"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ".".join(called(node).split(".")[-2:]) in CLOCK_CALLS:
                found.append(f"{module}:{node.lineno} reads a clock: {called(node)}")
    return found


def forbidden(module: str, name: str) -> Iterator[str]:
    """Why *module* may not import *name*; nothing where it may."""
    top = name.partition(".")[0]
    if top in PACKAGES:
        (layer, group), (other_layer, other_group) = place(module), place(name)
        if matches(module, "chrono_beat") and matches(name, "chrono_beat_django"):
            yield f"imports {name}: chrono_beat knows nothing of Django"
        elif other_group != group and other_layer >= layer:
            yield f"imports {name}: {group} may not import {other_group}"
        elif matches(name, "chrono_beat.testing") and not matches(module, "chrono_beat.testing"):
            yield f"imports {name}: that is for tests"
    elif matches(module, "chrono_beat.core"):
        if top != "croniter" and top not in sys.stdlib_module_names:
            yield f"imports {name}: the core has the standard library and croniter"
        if top == "time":
            yield f"imports {name}: the core has no clock and does not sleep"
    elif top in ONLY_IN and not any(matches(module, prefix) for prefix in ONLY_IN[top]):
        yield f"imports {name}: only {', '.join(ONLY_IN[top])} may"


def modules() -> list[tuple[str, Path]]:
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return [(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path) for path in paths]


def test_imports_point_towards_the_core():
    found = [
        breach
        for module, path in modules()
        for breach in breaches(module, path.read_text(), is_package=path.name == "__init__.py")
    ]

    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("chrono_beat.core.schedule", "import redis"),
        ("chrono_beat.core.schedule", "from chrono_beat.ports import JobStore"),
        ("chrono_beat.core.schedule", "from ..services import dispatcher"),
        ("chrono_beat.core.schedule", "from time import monotonic"),
        ("chrono_beat.core.schedule", "def f():\n    import time"),
        ("chrono_beat.core.schedule", "from datetime import datetime\nnow = datetime.now()"),
        ("chrono_beat.core.schedule", "import datetime\nnow = datetime.datetime.utcnow()"),
        ("chrono_beat.core.schedule", "import chrono_beat"),
        ("chrono_beat.ports", "from chrono_beat.services.service import Service"),
        ("chrono_beat.services.dispatcher", "from chrono_beat.redis.queue import RedisQueue"),
        ("chrono_beat.services.dispatcher", "from chrono_beat import redis"),
        ("chrono_beat.services.dispatcher", "from .. import redis"),
        ("chrono_beat.services.dispatcher", "import redis"),
        ("chrono_beat.services.dispatcher", "from celery import current_app"),
        ("chrono_beat.services.dispatcher", "from chrono_beat.testing import ManualClock"),
        ("chrono_beat.redis.queue", "from chrono_beat.services import reaper"),
        ("chrono_beat.redis.queue", "from kombu import Queue"),
        ("chrono_beat.celery.worker", "from django.conf import settings"),
        ("chrono_beat.celery.worker", "import chrono_beat_django.wiring"),
        ("chrono_beat.celery.worker", "import importlib\nimportlib.import_module('django.conf')"),
        ("chrono_beat_django.store", "from chrono_beat.services import dispatcher"),
        ("chrono_beat_django.store", "from chrono_beat.redis import queue"),
        ("chrono_beat_django.store", "from . import wiring"),
        ("chrono_beat_django.store_partitions", "from chrono_beat_django.admin import JobAdmin"),
        ("chrono_beat_django.models", "from .wiring import build"),
        ("chrono_beat_django.wiring", "from chrono_beat_django.api import router"),
    ],
)
def test_the_checker_sees_a_breach(module, source):
    """A checker that cannot fail proves nothing."""
    assert breaches(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("chrono_beat.core.schedule", "from croniter import croniter\nfrom .errors import Problem"),
        ("chrono_beat.core.schedule", "def f(now):\n    return now()"),
        ("chrono_beat.services.dispatcher", "from chrono_beat.ports import JobStore\nfrom .service import Service"),
        ("chrono_beat.redis.queue", "import redis\nfrom chrono_beat.core.ids import execution_id"),
        ("chrono_beat_django.store", "from django.db import models\nfrom .models import Job"),
        ("chrono_beat_django.wiring", "from .store import DjangoStore\nfrom chrono_beat.services import dispatcher"),
        ("chrono_beat_django.admin.jobs", "from chrono_beat_django.wiring import wiring\nfrom ..models import Job"),
        ("chrono_beat.testing.servers", "import redis"),
    ],
)
def test_the_checker_lets_good_imports_pass(module, source):
    assert breaches(module, source) == []


def test_no_module_is_too_long_to_read_at_a_sitting():
    paths = [path for top in (*PACKAGES, "benchmarks", "example_project") for path in (ROOT / top).rglob("*.py")]
    long = {
        str(path.relative_to(ROOT)): lines
        for path in paths
        if "migrations" not in path.parts and (lines := len(path.read_text().splitlines())) >= LONGEST_MODULE_LINES
    }

    assert not long, long


def test_tests_that_own_their_clock_do_not_sleep():
    """ManualClock makes hours pass at once; whoever sleeps there is slow at best and flaky at worst."""
    sleepers = [
        f"{path.relative_to(ROOT)}:{number}"
        for kind in ("unit", "contract", "services", "simulation")
        for path in (ROOT / "tests" / kind).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(r"\bsleep\(", line)
    ]

    assert not sleepers, sleepers


def test_continuous_integration_runs_the_command_that_the_readme_gives():
    commands = re.findall(r"^ +(.*\btox)$", (ROOT / "README.rst").read_text(), re.MULTILINE)

    assert len(commands) == 1
    assert commands[0] in (ROOT / ".ci/run").read_text().splitlines()


def test_each_file_of_tests_has_a_name_of_its_own():
    """The folders of tests are no packages, so pytest collects only one of two files with the same name."""
    count = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))

    assert [name for name, times in count.items() if times > 1] == []
