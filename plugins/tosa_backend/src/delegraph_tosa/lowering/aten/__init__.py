"""Rules, one file a family of ATen operators. Importing a family registers its rules."""

from . import activation, cast, comparison, conv, create, elementwise, linear, noop, norm, pool, reduce, resize, shape

FAMILIES = (activation, cast, comparison, conv, create, elementwise, linear, noop, norm, pool, reduce, resize, shape)
"""In the order of the operator pages."""
