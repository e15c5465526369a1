"""Types, sizes and numbers that torch recorded, in TOSA's terms; and reasons to refuse
what TOSA does not have.
"""
