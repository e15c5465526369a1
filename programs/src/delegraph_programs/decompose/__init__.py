"""Replaces calls that no backend takes by calls of simpler operators."""
