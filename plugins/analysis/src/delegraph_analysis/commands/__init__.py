"""Implement the commands of this distribution."""
