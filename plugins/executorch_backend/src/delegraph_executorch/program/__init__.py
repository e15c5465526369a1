"""Describe the ``.pte`` and ``.ptd`` formats as Python classes, without torch or numpy."""
