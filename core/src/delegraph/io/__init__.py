"""Bytes and files, also for plugins: blobs, whole files, paths, printable text."""
