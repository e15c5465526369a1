"""The text form of a graph, for people and for tests.

``parse(render(graph))`` is the same graph.

    graph @main(%x: [1x4]fp32) {
      %0: [1]fp32 = const [0.5] %y: [1x4]fp32 = CLAMP(%x) {min_val=0.0, max_val=inf,
      nan_mode=PROPAGATE}  // model.py:7, in forward: ... return %y
    }

Values without a name, or with one that another value has, are numbered. Graphs of
control flow follow the one that refers to them. Attributes that result types determine
(``dtype`` of CAST) is not repeated among its attributes. Floats of at most 8 bits are
their bit patterns; a block-scaled constant has its values, then its scales:

      %0: [1x32]bs32_fp8ue8m0_fp4e2m1 = const splat 2 scales [127]
"""

from .parsing import parse
from .printing import render

__all__ = ["parse", "render"]
