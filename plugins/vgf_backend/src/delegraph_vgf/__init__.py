"""VGF backend of delegraph: partitions become VGF files for Vulkan, through TOSA."""
