"""OpenVINO as a backend of delegraph.

Read ``frontend`` (a graph of calls becomes OpenVINO's model), ``support`` (which calls
it takes), ``backend`` and ``runtime``, in this order.
"""
