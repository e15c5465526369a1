"""Types, sizes and numbers that torch recorded, in TOSA's terms.

Also has the reasons to refuse types that TOSA lacks.
"""
