"""ExecuTorch's program format for delegraph: ``.pte`` files written, read, inspected and run, without ExecuTorch."""
