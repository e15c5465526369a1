"""Finds ranges of integers, from operators, torch's records and conditions."""
