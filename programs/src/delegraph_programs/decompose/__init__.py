"""Decompositions: operators that no backend takes become calls of other operators."""
