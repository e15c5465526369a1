"""Decompositions: operators that no backend takes, written in terms of others, one call
at a time.
"""
