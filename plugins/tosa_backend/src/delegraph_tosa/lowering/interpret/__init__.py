"""The walk over a torch program: each call is bound to its rule, which is applied for
real or as a dry run.
"""
