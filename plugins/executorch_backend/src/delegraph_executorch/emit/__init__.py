"""Write lowered programs as program files."""

from .program import EmitOptions, EmittedProgram, emit_program

__all__ = ["EmitOptions", "EmittedProgram", "emit_program"]
