"""What is told about a lowering: text, JSON, page."""
