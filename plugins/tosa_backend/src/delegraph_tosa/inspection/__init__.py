"""What ``delegraph inspect`` says of a graph beyond its text: figures, a page that shows it, other tools' verdicts."""

from .figures import Figures, figures
from .outside import Verdict, verdicts
from .page import page
from .sampling import sample

__all__ = ["Figures", "Verdict", "figures", "page", "sample", "verdicts"]
