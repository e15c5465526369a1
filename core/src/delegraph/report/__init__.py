"""The report of a lowering: as text, as JSON, and as a page with pictures."""
