"""Ethos-U backend of delegraph: compiles partitions with TOSA and Vela.

ExecuTorch's Ethos-U delegate runs the results.
"""
