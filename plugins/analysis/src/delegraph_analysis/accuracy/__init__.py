"""Compare every value of a lowered program with eager PyTorch and float64."""
