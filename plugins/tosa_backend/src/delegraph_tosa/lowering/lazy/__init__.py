"""Values that stand for a tensor but are not computed yet: quantized, uint8 and complex
ones.
"""
