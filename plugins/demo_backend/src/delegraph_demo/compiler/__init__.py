"""A compiler with a blob of its own and a runtime.

Read ``operators`` (what there is to compile), ``backend``, ``partitioner``, ``format``
and ``runtime``, in this order.
"""
