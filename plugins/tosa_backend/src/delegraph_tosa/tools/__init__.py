"""What ``delegraph inspect`` says of a graph beyond its text: figures, other tools'
verdicts, a page (``html``).
"""

from .external_validators import verdicts
from .random_inputs import sample
from .statistics import Figures, figures
from .summary import summarize

__all__ = ["Figures", "figures", "sample", "summarize", "verdicts"]
