"""OpenVINO as a backend of delegraph.

Read ``frontend`` (a graph of calls becomes OpenVINO's model), ``support`` (the calls
that OpenVINO supports), ``backend`` and ``runtime``, in this order.
"""
