"""Types, sizes and numbers that torch recorded, in TOSA's terms.

And reasons to refuse what TOSA does not have.
"""
