"""Programs of ``torch.export``: what they are made of and how they are rewritten. Nothing here knows about backends.

The names below are public; the modules are not.
"""

from .call_names import EXPORTED, INDEXED, LEFT, WITHIN, count_operators, is_operator, operator_name, unpacked
from .call_spec import VARYING, expect_indices, expect_within, is_fixed, wrong_input
from .checks import erase, find_checks
from .constant_values import ConstantValues
from .decompose.tables import RECURRENT, to_core
from .example_inputs import distinct_inputs
from .graph_equality import same_arguments
from .input_sizes import input_names
from .opaque import Opaque
from .resizing import why_factor_undecided
from .schema import bound_arguments, is_random
from .shared_memory import addresses
from .subgraphs import all_nodes
from .tracing import TRACING
from .types import ExampleInputs, Program, Transform

__all__ = [
    "EXPORTED",
    "INDEXED",
    "LEFT",
    "RECURRENT",
    "TRACING",
    "VARYING",
    "WITHIN",
    "ConstantValues",
    "ExampleInputs",
    "Opaque",
    "Program",
    "Transform",
    "addresses",
    "all_nodes",
    "bound_arguments",
    "count_operators",
    "distinct_inputs",
    "erase",
    "expect_indices",
    "expect_within",
    "find_checks",
    "input_names",
    "is_fixed",
    "is_operator",
    "is_random",
    "operator_name",
    "same_arguments",
    "to_core",
    "unpacked",
    "why_factor_undecided",
    "wrong_input",
]
