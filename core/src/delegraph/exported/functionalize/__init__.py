"""Step 1: an exported program in functional form, without retracing it."""
