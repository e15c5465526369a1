"""Write and read program files."""
