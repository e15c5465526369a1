"""The light module. Imports neither torch nor numpy."""

from __future__ import annotations
