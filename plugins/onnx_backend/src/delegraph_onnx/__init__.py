"""ONNX Runtime as a backend of delegraph.

Read ``exporter`` (a partition becomes an ONNX model), ``support`` (the calls that it
takes), ``backend``, ``runtime`` and ``format`` (the file ``.onnx``), in this order.
"""
