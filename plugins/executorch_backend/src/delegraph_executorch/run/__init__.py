"""Running program files on this host."""
