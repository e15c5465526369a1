"""The text form of a graph, for people and for tests.

``parse(render(graph))`` is the same graph.

    graph @main(%x: [1x4]fp32) {
      %0: [1x1]fp32 = const [0.5]
      %y: [1x4]fp32 = ADD(%x, %0)  // model.py:7, in forward: return x + 0.5
      return %y
    }

Values without a name, or with one that another value has, are numbered. Graphs of
control flow follow the one that refers to them. Attributes that follow from the result
types, such as ``dtype`` of CAST, are left out. Floats of at most 8 bits are their bit
patterns. A block-scaled constant has its values, then its scales:

      %0: [1x32]bs32_fp8ue8m0_fp4e2m1 = const splat 2 scales [127]
"""

from .parsing import parse
from .printing import render

__all__ = ["parse", "render"]
