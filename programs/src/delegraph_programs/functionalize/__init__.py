"""Step ``normalize``: an exported program in functional form, without retracing it."""
