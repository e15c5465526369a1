"""The report of a lowering: its facts, and how they become text and JSON. Other forms are written by plugins."""
