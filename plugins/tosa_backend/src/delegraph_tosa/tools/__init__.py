"""What ``delegraph inspect`` says of a graph beyond its text: figures, other tools'
verdicts, a page (``html``).
"""

from .external_validators import verdicts
from .graph_figures import Figures, figures
from .random_inputs import sample
from .summary import summarize

__all__ = ["Figures", "figures", "sample", "summarize", "verdicts"]
