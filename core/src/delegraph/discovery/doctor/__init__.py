"""What ``delegraph doctor`` finds out, by examining each plugin in a process of its own."""
