"""Asks the outside judges about all illegal graphs and writes what they say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from . import broken
from .judging import record

Path(sys.argv[1]).write_text(json.dumps(record(broken()), indent=1) + "\n")
