"""Which release of the zone data this host has, as `zoneinfo` would load it now."""
from __future__ import annotations

import hashlib
import re
import zoneinfo
from importlib import resources
from pathlib import Path

FIRST_FILE = "Europe/London"
"""The folder that has this zone is the one that is used: `zoneinfo` looks through its path for each zone."""

_SYSTEM = re.compile(r"# version (\S{1,32})")
_PACKAGE = re.compile(r"""IANA_VERSION\s*=\s*["'](\S{1,32})["']""")


def zone_release() -> str:
    """Return the release, such as ``2026a``; where the files do not say, a digest of them, which no order is in.

    It is read from the files each time, not from what is imported, so that an update under a living process is seen.
    """
    for folder in map(Path, zoneinfo.TZPATH):
        if (folder / FIRST_FILE).is_file():
            return _named(folder / "tzdata.zi", _SYSTEM) or _named(folder / "+VERSION", re.compile(r"(\S{1,32})")) or (
                _digest(folder))
    try:
        text = resources.files("tzdata").joinpath("__init__.py").read_text(encoding="utf-8")
    except (ModuleNotFoundError, OSError):
        return ""
    found = _PACKAGE.search(text)
    return found[1] if found else ""


def _named(file: Path, pattern: re.Pattern[str]) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            found = pattern.match(lines.readline())
    except OSError:
        return ""
    return found[1] if found else ""


def _digest(folder: Path) -> str:
    seen = hashlib.sha256()
    for key in sorted(zoneinfo.available_timezones()):
        file = folder / key
        if file.is_file():
            seen.update(key.encode() + b"\0" + file.read_bytes())
    return f"digest-{seen.hexdigest()[:24]}"
