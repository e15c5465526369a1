"""What ``delegraph doctor`` finds out, each plugin in a process of its own."""
