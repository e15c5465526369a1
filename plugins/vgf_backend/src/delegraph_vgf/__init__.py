"""VGF backend of delegraph: partitions become VGF files for Vulkan's ML extensions, by
way of TOSA.
"""
