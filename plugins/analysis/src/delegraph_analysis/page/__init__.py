"""The report of a lowering as one page, and tables for pages."""
