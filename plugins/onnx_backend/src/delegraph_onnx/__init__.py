"""ONNX Runtime as a backend of delegraph.

Read the modules in this order:

1. ``plugin`` declares the backend, and ``settings`` reads its options.
2. ``exporter`` converts a partition to an ONNX model, with ``type_promotion`` and
   ``exporter_rules``. The package ``rewrites`` then changes the model for the CPU or
   for an NPU.
3. ``support`` decides which calls the backend takes: it converts and loads each call
   by itself.
4. ``backend`` compiles a partition. ``model_weights`` moves weights out of the model,
   and ``compile_ahead`` calls the compilers of ``providers``.
5. ``runtime`` runs the result in a ``session``. ``observer`` and ``profiler`` show the
   values and times of calls.
6. ``format`` reads and writes ``.onnx`` files.
"""
