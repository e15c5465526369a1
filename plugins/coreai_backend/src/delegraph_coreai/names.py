"""Names and types that compiler and runtime share. Imports nothing heavy."""

MARK = b"delegraph-coreai-2"
"""The end of each blob, which holds the bytecode of a Core AI program."""
MAIN = "main"
"""The name of the one function of a program."""
NARROW = {"int64": "int32", "int": "int32"}
"""Types of delegates -> those in which Core AI computes them."""
DTYPES = {
    "Float32": "float32",
    "Float16": "float16",
    "BFloat16": "bfloat16",
    "Int8": "int8",
    "UInt8": "uint8",
    "Int16": "int16",
    "Int32": "int32",
    "Bool": "bool",
}
"""Core AI's names of types -> torch's."""
