"""IREE backend of delegraph: partitions become IREE modules, through TOSA.

``mlir.write_mlir`` is public.
"""
