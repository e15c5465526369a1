"""From installed distributions to backends by name: entry points, records of what
became of each plugin, look-up.
"""
