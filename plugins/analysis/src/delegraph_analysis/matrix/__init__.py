"""``delegraph matrix``: models x backends x quantizations, one row of figures for each
cell.

``description`` reads the file of a matrix, and ``cells`` lists its cells. ``schedule``
passes them to an executor. Each runs in its own process (``process``, ``forking``),
where ``measure`` does the work. ``store`` keeps rows and files; ``tables``, ``page``,
``refusals`` and ``changes`` read them. Only ``measure`` imports torch.
"""
