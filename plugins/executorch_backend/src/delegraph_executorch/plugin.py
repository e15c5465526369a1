"""The light module of delegraph-executorch: what it offers, without importing torch or numpy."""

from __future__ import annotations
