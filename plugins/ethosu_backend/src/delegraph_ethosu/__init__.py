"""Ethos-U backend of delegraph: partitions become what ExecuTorch's Ethos-U delegate
runs, by way of TOSA and Vela.
"""
