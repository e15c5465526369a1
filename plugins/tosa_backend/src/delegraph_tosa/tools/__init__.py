"""What ``delegraph inspect`` says of a graph beyond its text: figures, a page that shows it, other tools' verdicts."""

from .external_validators import verdicts
from .html import page
from .random_inputs import sample
from .statistics import Figures, figures
from .summary import summarize

__all__ = ["Figures", "figures", "page", "sample", "summarize", "verdicts"]
