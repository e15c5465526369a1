"""The teaching backends of delegraph.

The smallest plugin: read ``plugin.py``, ``backend.py`` and ``partitioner.py``, in this
order. One with a real compiler, a blob of its own and a runtime: the folder
``compiler``.
"""
