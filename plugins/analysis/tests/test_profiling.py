"""Where the time of a call goes: nothing is spread, nothing is counted twice, and what
is on no line says so.
"""

import importlib
import json

import delegraph
import pytest
import torch
from delegraph.cli import main
from delegraph.errors import FormatError, InputError
from delegraph.formats import Origin, Step
from delegraph.runtime import Border
from delegraph_analysis import ProgramProfile, profiling, render_page
from delegraph_analysis.page.heat import Times
from delegraph_analysis.profiling import Part
from delegraph_programs import Source

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        y = torch.sin(self.first(x))
        z = torch.linalg.inv_ex(y)[0]
        return self.second(z)

def net():
    return Net().eval(), (torch.eye(8),)
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "net.py").write_text(MODEL)
    return tmp_path / "net.py"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = torch.sin(self.first(x))
        return self.second(torch.linalg.inv_ex(y)[0])


@pytest.mark.parametrize("backends", [["tosa"], ["compiler-demo"], []])
def test_the_parts_are_the_whole(backends):
    lowered = delegraph.lower(Net().eval(), (torch.eye(8),), backends=backends)
    found = lowered.profile(torch.eye(8), repeats=3)
    assert found.repeats == 3
    assert found.fastest <= found.seconds <= found.slowest
    total = sum(part.seconds for part in found.parts)
    assert total == pytest.approx(found.seconds, rel=0.05)
    for table in (found.by_line(), found.by_module(), found.by_place()):
        assert sum(seconds for _, seconds in table) == pytest.approx(total)
        assert [seconds for _, seconds in table] == sorted(
            (s for _, s in table), reverse=True
        )
    assert {name for name, _ in found.by_module()} >= {
        "first",
        "second",
        "in no module",
    }
    assert {name for name, _ in found.by_place()} == {
        "host",
        *(delegate.name for delegate in lowered.delegates),
    }
    code = " ".join(name for name, _ in found.by_line())
    assert "self.first(x)" in code
    assert "linalg.inv_ex" in code
    assert "on no line" in code


class Quantized(torch.nn.Module):
    def forward(self, x):
        ops = torch.ops.quantized_decomposed
        q = ops.quantize_per_tensor.default(x, 0.1, 0, -128, 127, torch.int8)
        y = torch.relu(
            ops.dequantize_per_tensor.default(q, 0.1, 0, -128, 127, torch.int8)
        )
        return ops.quantize_per_tensor.default(y, 0.1, 0, -128, 127, torch.int8)


def test_integer_operators_count_for_the_lines_of_floats():
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    options = {"tosa": {"spec": "TOSA-1.0+INT"}}
    lowered = delegraph.lower(
        Quantized().eval(), (torch.ones(8),), backends=["tosa"], options=options
    )
    found = lowered.profile(torch.ones(8), repeats=1)
    inside = [part for part in found.parts if part.where != "host" and part.lines]
    assert inside
    assert all(
        "torch.relu" in line.code or "ops." in line.code
        for part in inside
        for line in part.lines
    )
    assert {name for name, _ in found.by_place()} == {
        "host",
        "lowered_module_0",
    }
    assert 0 < found.attributed < 1


def test_fused_operators_count_for_all_their_lines():
    class Fused(torch.nn.Module):
        def forward(self, x):
            y = x.reshape(4, 2)
            return y.reshape(2, 4)

    found = delegraph.lower(
        Fused().eval(), (torch.ones(8),), backends=["tosa"]
    ).profile(torch.ones(8), repeats=1)
    assert all(part.seconds >= 0 for part in found.parts)
    lines = [part.lines for part in found.parts if part.where != "host" and part.lines]
    assert any(len(listed) == 2 for listed in lines)


def test_operators_fused_at_load_count_for_all_lines():
    lowered = delegraph.lower(Net().eval(), (torch.eye(8),), backends=["compiler-demo"])
    delegate = max(lowered.delegates, key=lambda d: len(d.nodes))
    identifiers = tuple(delegate.debug_handle_map)
    clock = profiling._Clock()
    clock.begin({})
    clock.spent(
        delegate, 1.0, lambda: {identifiers: {"seconds": 0.5}, None: {"seconds": 0.125}}
    )
    whole, moving, rest = clock.finish()
    assert len(identifiers) > 1
    assert {*whole.nodes} >= {
        node.name for node in delegate.nodes if "debug_handle" in node.meta
    }
    assert (whole.seconds, whole.identifier, whole.lines != ()) == (
        0.5,
        identifiers,
        True,
    )
    assert moving.what == "on no operator"
    assert moving.lines == ()
    assert rest.seconds == 0.375
    clock = profiling._FileClock()
    clock.spent("Acme", 1.0, lambda: {(0, 1): {"seconds": 0.5}, 2: {"seconds": 0.25}})
    inside = {
        "0": Origin(("sin",), ("a.py:1", "a.py:2")),
        "1": Origin(("cos", "sin"), ("a.py:2",)),
    }
    clock.see(Step("call", Origin(), inside))
    told = {
        part.what: (part.seconds, part.lines)
        for part in clock.finish()
        if part.where == "call"
    }
    assert told["sin and cos"] == (0.5, ("a.py:1", "a.py:2"))
    assert told["operator 2"] == (0.25, ())


def test_border_copies_count_for_their_only_operator():
    class Ends(torch.nn.Module):
        def forward(self, x, y):
            z = torch.sin(x)
            return z + y, torch.cos(y) * 2

    lowered = delegraph.lower(
        Ends().eval(), (torch.ones(8), torch.ones(8)), backends=["tosa"]
    )
    [delegate], clock = lowered.delegates, profiling._Clock()
    places = [Border(side, place) for side in ("input", "output") for place in range(3)]
    clock.spent(
        delegate, 1.0, lambda: {border: {"seconds": 0.0625} for border in places}
    )
    found = {
        part.identifier: [line.code for line in part.lines]
        for part in clock.finish()
        if part.identifier
    }
    first, both, beyond = (found[Border("input", place)] for place in range(3))
    assert first == ["z = torch.sin(x)"]
    assert both == []
    assert beyond == []
    assert (
        found[Border("output", 0)]
        == found[Border("output", 1)]
        == ["return z + y, torch.cos(y) * 2"]
    )
    assert "handing over input 1" in {part.what for part in clock.finish()}


def test_times_are_read_after_the_call_or_before_another():
    lowered = delegraph.lower(Net().eval(), (torch.eye(8),), backends=["compiler-demo"])
    delegate = lowered.delegates[0]
    reads = []

    def read(seconds):
        reads.append(seconds)
        return {None: {"seconds": seconds}}

    clock = profiling._Clock()
    clock.begin({})
    clock.spent(delegate, 1.0, lambda: read(0.25))
    assert reads == []
    clock.spent(delegate, 1.0, lambda: read(0.5))
    assert reads == [0.25]
    assert [part.seconds for part in clock.finish()] == [
        0.25,
        0.75,
        0.5,
        0.5,
    ]
    assert reads == [0.25, 0.5]
    clock.spent(delegate, 1.0, lambda: read(2.0))  # of a call that fails
    clock.begin({})
    assert clock.finish() == []
    assert len(reads) == 2


def test_overhead_is_measured_by_pairs_of_adjacent_calls():
    """The machine is three times slower for a while, and each watched call takes twice
    what the next one does.
    """
    clock = profiling._Clock()
    watched = iter([9.0, 2.0, 6.0, 6.0, 2.0, 2.0])
    plain = iter([9.0, 1.0, 3.0, 3.0, 1.0, 1.0])
    found = profiling._profile_calls(
        "forward", 5, clock, lambda: next(watched), lambda: next(plain), {}
    )
    assert found.watching == 2.0 == found.to_json()["watching"]
    uneven = iter([9.0, 2.0, 8.0, 8.0]), iter([9.0, 1.0, 8.0, 2.0])
    found = profiling._profile_calls(
        "forward", 3, clock, *(lambda of=of: next(of) for of in uneven), {}
    )
    assert found.watching == 2.0
    assert found.seconds / found.plain_seconds == 4.0


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x):
        self.count.add_(1)
        x.mul_(2)
        return x + self.count


def test_neither_state_nor_inputs_are_written():
    lowered = delegraph.lower(Counting(), (torch.ones(3),), backends=["tosa"])
    given = torch.ones(3)
    lowered.profile(given, repeats=2)
    assert given.tolist() == [1, 1, 1]
    assert lowered(torch.ones(3)).tolist() == [3, 3, 3]


def profile_of(*parts):
    return ProgramProfile(
        "forward", 1, 2.0, 2.0, 2.0, 2.0, 1.0, 3.0, None, parts, {"d": {"cycles": 7}}
    )


def test_concurrent_operators_are_shown_as_shares_of_their_sum():
    line = (Source("net.py", 3, "forward", "x\ncan run: yes\x1b[2J"),)
    text = str(found := profile_of(Part("0", "d", 3.0, line), Part("1", "d", 1.0)))
    assert found.total == 4
    assert found.attributed == 0.75
    assert (
        "a runtime ran operators at the same time: their times add up to 4000.000 ms"
        in text
    )
    assert "75%" in text
    assert "7 cycles" in text
    assert "\x1b" not in text
    assert "\ncan run" not in text


def test_times_are_colours_of_the_page_and_a_column(path, tmp_path, capsys):
    page = tmp_path / "r.html"
    nodes = tmp_path / "r.nodes.json"
    reports = [
        "--report",
        page,
        "--report",
        nodes,
        "--report",
        tmp_path / "r.json",
        "--report",
        tmp_path / "r.txt",
    ]
    assert (
        main(
            [
                "profile",
                f"{path}:net",
                "--backend",
                "tosa",
                "--repeats",
                "1",
                *map(str, reports),
            ]
        )
        == 0
    )
    shown = page.read_text()
    assert "Where the time of a call goes" in shown
    assert "20 % or more" in shown
    assert ' e4"' in shown
    column = json.loads((tmp_path / "r.milliseconds.json").read_text())["graph"][
        "results"
    ]
    assert {"linear", "sin", "linear_1"} <= column.keys()
    assert all(row["value"] >= 0 for row in column.values())
    assert (
        json.loads((tmp_path / "r.json").read_text())["profile"]["forward"]["repeats"]
        == 1
    )
    assert "by module:" in (tmp_path / "r.txt").read_text()


def test_pictures_show_times_of_nodes_and_of_groups():
    times = Times(
        profile_of(
            Part("0", "d", 0.5, nodes=("a", "b")),
            Part("1", "d", 0.01, nodes=("a",)),
            Part("add", "host", 1.49),
        )
    )
    assert [
        times.heat("d"),
        times.heat("d", "a"),
        times.heat("d", "b"),
        times.heat("d", "c"),
    ] == [4, 4, 4, 0]
    assert list(times.shown("d", "a")) == ["510 ms, 25.5%, 2 operators together"]
    assert list(times.lines("d", "b")) == ["0: 500 ms for this and 1 more"]
    with pytest.raises(InputError, match="not the result of profile"):
        render_page(
            delegraph.lower(Net().eval(), (torch.eye(8),), backends=[]).report,
            {},
            {"forward": 3},
        )


def test_wrong_repeats_and_missing_inputs_are_refused():
    lowered = delegraph.lower(Net().eval(), (torch.eye(8),), backends=[])
    for repeats in (0, -1, 1.5, True):
        with pytest.raises(InputError, match="repeats is a positive number of calls"):
            lowered.profile(torch.eye(8), repeats=repeats)
    with pytest.raises(InputError):
        lowered.profile(repeats=1)


def test_profile_command_prints_text_and_json(path, capsys):
    words = ["profile", f"{path}:net", "--backend", "compiler-demo", "--repeats", "2"]
    assert main(words) == 0
    stdout = capsys.readouterr().out
    assert stdout.startswith("method forward: ")
    assert "by line:" in stdout
    assert "by module:" in stdout
    assert "by place:" in stdout
    assert main([*words, "--json"]) == 0
    [method] = json.loads(capsys.readouterr().out)["methods"]
    assert method["repeats"] == 2
    assert {"lines", "modules", "places", "parts", "attributed"} <= method.keys()
    assert any(
        line.endswith("net.py:10") for part in method["parts"] for line in part["lines"]
    )


class Summing(Net):
    def forward(self, x):
        return self.second(torch.cumsum(self.first(x), 1))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A program of two delegates and a host operator, saved with its side file and
    without, and one of a delegate.
    """
    folder = tmp_path_factory.mktemp("saved")
    lowered = delegraph.lower(
        Summing().eval(), (torch.eye(8),), backends=["compiler-demo"]
    )
    lowered.save(folder / "with.pte", debug_file=True)
    lowered.save(folder / "bare.pte")
    delegraph.lower(torch.nn.Linear(8, 8), (torch.eye(8),), backends=["tosa"]).save(
        folder / "whole.tosa"
    )
    return folder


def test_saved_programs_get_their_lines_from_the_side_file(
    saved,
):
    found = delegraph.load(saved / "with.pte").profile(torch.eye(8), repeats=2)
    assert found.total == pytest.approx(found.seconds, rel=0.1)
    lines = " ".join(name for name, _ in found.by_line())
    assert "torch.cumsum(self.first(x), 1)" in lines
    assert "on no line" in lines
    assert {"BackendWithCompilerDemo 0", "BackendWithCompilerDemo 1", "host"} == {
        name for name, _ in found.by_place()
    }
    assert {"aten.cumsum.default", "aten.linear.default"} <= {
        name for name, _ in found.by_operator()
    }
    bare = delegraph.load(saved / "bare.pte").profile(torch.eye(8), repeats=1)
    assert bare.attributed == 0
    assert "by line:" not in str(bare)
    assert "by operator:" in str(bare)


def test_delegates_of_a_format_that_knows_no_steps_are_timed(saved, capsys):
    assert main(["profile", str(saved / "whole.tosa"), "--repeats", "1"]) == 0
    stdout = capsys.readouterr().out
    assert "0% of it on lines of the program" in stdout
    assert "TOSABackend" in stdout
    assert "by module" not in stdout


def test_operators_of_tosa_files_keep_their_source_lines(
    tmp_path,
):
    class Model(torch.nn.Module):
        def forward(self, x):
            y = x.dim() and x.sin()
            return (y + x.cos()).abs()

    lowered = delegraph.lower(
        Model(),
        (torch.ones(3),),
        backends=["tosa"],
        options={"tosa": {"locations": True}},
    )
    lowered.save(tmp_path / "m.tosa")
    found = delegraph.load(tmp_path / "m.tosa").profile(torch.ones(3), repeats=1)
    lines = {
        str(line).partition(": ")[2]: part.what
        for part in found.parts
        for line in part.lines
    }
    assert lines == {
        "y = x.dim() and x.sin()": "aten.sin.default",
        "return (y + x.cos()).abs()": "aten.abs.default",
    }


@pytest.mark.parametrize(
    "content, says",
    [
        ('{"schema": "delegraph.pte-debug/1", "methods": {"forward": {}}}', "is not the debug file of other.pte"),
        ('{"schema": "delegraph.pte-debug/1", "methods": {"forward": '
         '{"instructions": [1], "delegates": [], "operators": {}}}}', "it lists 1 instructions and 0 delegates"),
        ("[", "is not a debug file"),
    ],
)  # fmt: skip
def test_a_side_file_of_another_program_is_an_error(saved, content, says):
    (saved / "other.pte").write_bytes((saved / "bare.pte").read_bytes())
    (saved / "other.debug.json").write_text(content)
    with pytest.raises(FormatError, match=says):
        delegraph.load(saved / "other.pte").profile(torch.eye(8), repeats=1)


@pytest.mark.parametrize(
    "words", [["--backend", "tosa"], ["--report", "r.html"], ["--input", "no.npy"]]
)
def test_options_for_models_are_refused_for_files(saved, words, capsys):
    assert main(["profile", str(saved / "bare.pte"), *words]) == 2
    assert words[0] in (told := capsys.readouterr().err) or "no.npy" in told


def test_a_method_of_several_is_chosen_by_name(tmp_path, capsys):
    program = torch.export.export(torch.nn.Linear(8, 8), (torch.eye(8),))
    lowered = delegraph.lower(
        {"encode": program, "decode": program}, backends=["compiler-demo"]
    )
    lowered.save(tmp_path / "two.pte")
    words = ["profile", str(tmp_path / "two.pte"), "--repeats", "1"]
    assert main(words)
    stderr = capsys.readouterr().err
    assert "['encode', 'decode']" in stderr
    assert "--method" in stderr
    assert main([*words, "--method", "decode"]) == 0
    assert capsys.readouterr().out.startswith("method decode: ")
