"""The teaching backends of delegraph.

The smallest plugin: read ``plugin.py``, ``backend.py`` and ``partitioner.py``, in this
order. The folder ``compiler`` has one with a real compiler, a blob format and a
runtime.
"""
