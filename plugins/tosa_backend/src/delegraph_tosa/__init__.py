"""TOSA backend of delegraph: one rule an ATen operator, one typed graph, one flatbuffer."""
