"""The teaching backend of delegraph."""
