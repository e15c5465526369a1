"""Rules, one file a family of ATen operators. Importing a family registers its rules."""

from . import (
    activation,
    attention,
    cast,
    comparison,
    conv,
    create,
    elementwise,
    exponential,
    linear,
    noop,
    norm,
    pool,
    reduce,
    resize,
    rounding,
    shape,
    trigonometry,
)

FAMILIES = (
    activation,
    attention,
    cast,
    comparison,
    conv,
    create,
    elementwise,
    exponential,
    linear,
    noop,
    norm,
    pool,
    reduce,
    resize,
    rounding,
    shape,
    trigonometry,
)
"""In the order of the operator pages."""
