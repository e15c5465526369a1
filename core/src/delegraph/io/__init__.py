"""Bytes and files, also for plugins: blobs, whole files, flatbuffers, the memory of
tensors, text made printable.
"""
