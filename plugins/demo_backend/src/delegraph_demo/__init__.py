"""The teaching backend of delegraph: read ``plugin.py``, ``backend.py`` and ``partitioner.py``, in this order."""
