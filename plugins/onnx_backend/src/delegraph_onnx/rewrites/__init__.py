"""Rewrites of exported ONNX models, for ONNX Runtime's CPU and for NPUs.

``Draft`` in ``delegraph_onnx.exporter`` calls them, in this order:

- for all: ``clip_bounds``, ``weight_scales``, ``bias_scales``;
- for the CPU: ``float_weights_for_cpu``, ``unsigned_integers``;
- for NPUs: ``linear_for_npu``, ``indices_for_npu``, ``activations_for_npu``,
  ``casts_for_npu``, ``unsigned_integers``, ``constants_for_npu``.

``graph_writer`` adds nodes and constants. ``quantized_layers`` finds the layers that
multiply quantized values.
"""
