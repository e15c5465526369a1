"""Branches and loops: control flow operators, and their graphs' inputs and outputs."""
