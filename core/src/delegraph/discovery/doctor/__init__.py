"""``delegraph doctor``: examines each plugin in a process of its own, and reports what
is wrong.
"""
