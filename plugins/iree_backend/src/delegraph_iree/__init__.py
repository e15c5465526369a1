"""IREE backend of delegraph: partitions become IREE modules, by way of TOSA.
``mlir.write_mlir`` is public.
"""
