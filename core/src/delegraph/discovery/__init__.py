"""Finds installed plugins and their backends by name."""
