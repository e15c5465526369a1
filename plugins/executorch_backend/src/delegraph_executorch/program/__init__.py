"""The ``.pte`` and ``.ptd`` formats as Python classes. Imports neither torch nor numpy."""
