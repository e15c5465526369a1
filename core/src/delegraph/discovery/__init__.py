"""From installed distributions to backends by name: entry points, records, look-up."""
