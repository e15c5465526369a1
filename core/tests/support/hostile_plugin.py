"""A plugin whose names, texts and errors try to control the terminal."""

EVIL = "\x1b]0;owned\x07\x1b[2J\r\x9b1A\u202e\u2066\u200b\x00\x7f\u2028\ud800"
"""Sets the title, clears the screen, overwrites the line, turns the direction of
writing, is invisible.
"""
PROGRESS_BAR = "\r50%\r100%"
HOSTILE = f"""
from delegraph.command import Outcome, progress
from delegraph.formats import ProgramFormat
from delegraph.plugin import BackendSpec, CommandSpec, FormatSpec, OptionSpec, hookimpl

EVIL = {EVIL!a}

@hookimpl
def delegraph_backends():
    options = (OptionSpec("mode", str, EVIL, (EVIL, "b"), EVIL),)
    return [BackendSpec("npu", "evil:NpuBackend", "NpuBackend", 1, EVIL, options=options)]

@hookimpl
def delegraph_formats():
    return [FormatSpec(".npu", "evil:Format")]

@hookimpl
def delegraph_commands():
    return [CommandSpec("show", "evil:Show", EVIL)]

class Inspection:
    def to_json(self): return {{"name": EVIL, EVIL: 1}}
    def __str__(self): return EVIL

class Format(ProgramFormat):
    def inspect(path): return Inspection()
    def page(path): raise ValueError(EVIL)
    def sample(path, seed): return []
    def run(path, inputs):
        import numpy
        print({PROGRESS_BAR!a})
        return [(EVIL, numpy.zeros(2))]

class Show:
    def add_arguments(parser):
        parser.add_argument("file", help=EVIL.replace("%", "%%"))
        parser.add_argument("--fail", action="store_true")

    def run(args):
        with progress(f"running {{args.file}}"):
            print({PROGRESS_BAR!a})
        if args.fail:
            raise ValueError(EVIL)
        return Outcome("evil.show/1", Inspection().to_json(), args.file)
"""
LONG = "x" * 5000
