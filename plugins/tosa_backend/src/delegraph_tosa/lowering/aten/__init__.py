"""Rules, one file a family of ATen operators."""
