"""Branches and loops: the operators of control flow, and the inputs and outputs of
their graphs.
"""
