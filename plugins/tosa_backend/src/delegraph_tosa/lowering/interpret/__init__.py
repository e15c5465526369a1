"""Walks over a torch program and applies each call's rule, for real or as a dry run."""
