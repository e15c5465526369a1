"""A delegraph backend for acme-npu.

Read ``plugin.py``, ``instructions.py`` and ``backend.py``, in this order.
"""
