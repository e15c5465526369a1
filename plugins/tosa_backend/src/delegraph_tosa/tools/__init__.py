"""Figures, summaries, pages and verdicts of other tools, for ``delegraph inspect``."""

from .external_validators import verdicts
from .graph_figures import Figures, figures
from .random_inputs import sample
from .summary import summarize

__all__ = ["Figures", "figures", "sample", "summarize", "verdicts"]
