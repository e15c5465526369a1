"""A lowered program on this machine: calls, files, verification."""
