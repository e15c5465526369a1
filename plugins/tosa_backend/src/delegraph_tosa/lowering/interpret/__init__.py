"""Walks a program of torch: binds each call to its rule and applies it, on real values or on a trial."""
