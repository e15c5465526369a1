"""The work of a lowering; ``pipeline`` lists its steps."""
