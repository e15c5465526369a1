"""``delegraph matrix``: models x backends x quantizations, one row of figures for each
cell.

``description`` reads what is wanted and ``cells`` says which cells that makes;
``schedule`` has them done by an executor, each in a process of its own (``process``,
``forking``), which ``measure`` does there; ``store`` keeps rows and files; ``tables``,
``page``, ``refusals`` and ``changes`` read them. Only ``measure`` imports torch.
"""
