"""Quantization by torchao's PT2E flow with a backend's quantizer, and what it costs layer by layer."""
