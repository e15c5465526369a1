"""Every value of a lowered program beside eager PyTorch and float64."""
