"""Configuration of Sphinx. ``tox -e docs`` builds the pages into docs/_build."""

import re
from pathlib import Path

_package = Path(__file__).resolve().parent.parent / "chrono_beat" / "__init__.py"

project = "chrono_beat"
author = "chrono_beat contributors"
release = re.search(r'__version__ = "(.+)"', _package.read_text()).group(1)
extensions = []
exclude_patterns = ["_build"]
html_theme = "alabaster"
