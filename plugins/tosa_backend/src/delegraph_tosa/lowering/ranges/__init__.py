"""Which integers a value may hold: what operators prove, what torch recorded, and what
a branch or a loop assumes.
"""
