"""The walk over a torch program.

It binds each call to its rule and applies it, for real or as a trial (the dry run).
"""
