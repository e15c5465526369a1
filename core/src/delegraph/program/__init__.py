"""The parts of a lowered program: delegates, call spec, executor, verification."""
