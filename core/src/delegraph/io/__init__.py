"""Bytes and files, for plugins too: blobs, whole files, flatbuffers, tensors' memory, text made printable."""
