"""A compiler with a blob format and a runtime.

Read ``operators`` (the supported operators), ``backend``, ``partitioner``, ``format``
and ``runtime``, in this order.
"""
