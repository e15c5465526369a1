"""TOSA as a typed language: what a program is, without torch and without a file format."""
