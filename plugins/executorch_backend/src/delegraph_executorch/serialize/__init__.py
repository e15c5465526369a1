"""Program files as bytes: writing and reading."""
