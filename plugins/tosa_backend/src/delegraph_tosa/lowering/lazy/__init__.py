"""Lazy values: quantized, uint8 and complex values that are not computed yet."""
