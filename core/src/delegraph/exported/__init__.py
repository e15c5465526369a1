"""Programs of ``torch.export``: what they are made of and how they are rewritten. Nothing here knows a backend."""
