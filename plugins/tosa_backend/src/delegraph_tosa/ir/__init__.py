"""TOSA as a typed language, without torch and without a file format."""
