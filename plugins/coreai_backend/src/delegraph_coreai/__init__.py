"""Apple's Core AI as a backend of delegraph.

Read ``converter`` (a partition becomes a Core AI program), ``support`` and
``integer_ranges`` (the calls that it takes), ``backend``, ``model``, ``runtime`` and
``format`` (the folder ``.aimodel``), in this order.
"""
