"""Compare lowered programs with eager PyTorch over data, in the metric of a task."""
