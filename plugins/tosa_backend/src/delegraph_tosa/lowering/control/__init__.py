"""Branches and loops: what crosses into their graphs, and the operators that run them."""
