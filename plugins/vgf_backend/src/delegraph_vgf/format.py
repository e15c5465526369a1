"""``.vgf`` files, which Arm's ML SDK for Vulkan runs. Imports no torch."""

from __future__ import annotations

from delegraph.formats import DelegateFormat


class VgfFormat(DelegateFormat):
    """A VGF file, the blob of one delegate; other readers of VGF read it as well."""

    backend_id = "VgfBackend"
