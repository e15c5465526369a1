"""Steps 3 to 6: partition, extract, compile, insert."""
