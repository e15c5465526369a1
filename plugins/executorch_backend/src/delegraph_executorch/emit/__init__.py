"""From lowered programs to program files."""

from .program import EmitOptions, EmittedProgram, emit_program

__all__ = ["EmitOptions", "EmittedProgram", "emit_program"]
