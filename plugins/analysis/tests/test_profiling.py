"""``profile`` attributes the time of a call to lines, modules and delegates."""

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


@pytest.fixture(scope="module", params=[["tosa"], ["compiler-demo"], []], ids=str)
def lowered(request):
    return delegraph.lower(Net().eval(), (torch.eye(8),), backends=request.param)


@pytest.fixture(scope="module")
def profile(lowered):
    return lowered.profile(torch.eye(8), repeats=3)


def test_the_median_is_between_the_fastest_and_slowest_call(profile):
    assert profile.repeats == 3
    assert profile.fastest <= profile.seconds <= profile.slowest


def test_times_of_parts_add_up_to_the_call(profile):
    total = sum(part.seconds for part in profile.parts)

    assert total == pytest.approx(profile.seconds, rel=0.05)


def test_each_table_has_the_whole_time_and_is_sorted(profile):
    total = sum(part.seconds for part in profile.parts)

    for table in (profile.by_line(), profile.by_module(), profile.by_place()):
        times = [seconds for _, seconds in table]
        assert sum(times) == pytest.approx(total)
        assert times == sorted(times, reverse=True)


def test_tables_name_modules_places_and_lines(lowered, profile):
    modules = {name for name, _ in profile.by_module()}
    places = {name for name, _ in profile.by_place()}
    lines = " ".join(name for name, _ in profile.by_line())

    assert modules >= {"first", "second", "in no module"}
    assert places == {"host", *(delegate.name for delegate in lowered.delegates)}
    assert "self.first(x)" in lines
    assert "linalg.inv_ex" in lines
    assert "on no line" in lines


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

    profile = lowered.profile(torch.ones(8), repeats=1)

    in_delegate = [part for part in profile.parts if part.where != "host"]
    code = [line.code for part in in_delegate for line in part.lines]
    assert code
    assert all("torch.relu" in text or "ops." in text for text in code)
    places = {name for name, _ in profile.by_place()}
    assert places == {"host", "lowered_module_0"}
    assert 0 < profile.attributed < 1


def test_fused_operators_count_for_all_their_lines():
    class TwoReshapes(torch.nn.Module):
        def forward(self, x):
            y = x.reshape(4, 2)
            return y.reshape(2, 4)

    lowered = delegraph.lower(TwoReshapes().eval(), (torch.ones(8),), backends=["tosa"])

    profile = lowered.profile(torch.ones(8), repeats=1)

    assert all(part.seconds >= 0 for part in profile.parts)
    assert any(part.where != "host" and len(part.lines) == 2 for part in profile.parts)


def test_operators_fused_at_load_count_for_all_lines():
    lowered = delegraph.lower(Net().eval(), (torch.eye(8),), backends=["compiler-demo"])
    delegate = max(lowered.delegates, key=lambda delegate: len(delegate.nodes))
    fused = tuple(delegate.debug_handle_map)
    assert len(fused) > 1
    # a tuple of identifiers are fused operators; None is time of no operator
    spent = {fused: {"seconds": 0.5}, None: {"seconds": 0.125}}

    clock = profiling._Clock()
    clock.begin({})
    clock.spent(delegate, 1.0, lambda: spent)
    of_fused, of_no_operator, rest = clock.finish()

    assert of_fused.seconds == 0.5
    assert of_fused.identifier == fused
    assert of_fused.lines
    assert {*of_fused.nodes} >= {
        node.name for node in delegate.nodes if "debug_handle" in node.meta
    }
    assert of_no_operator.what == "on no operator"
    assert of_no_operator.lines == ()
    assert rest.seconds == 1.0 - 0.5 - 0.125


def test_operators_fused_at_load_of_a_file_count_for_all_lines():
    spent = {(0, 1): {"seconds": 0.5}, 2: {"seconds": 0.25}}
    # the debug file knows the operators 0 and 1, but not 2
    origins = {
        "0": Origin(("sin",), ("a.py:1", "a.py:2")),
        "1": Origin(("cos", "sin"), ("a.py:2",)),
    }

    clock = profiling._FileClock()
    clock.spent("Acme", 1.0, lambda: spent)
    clock.see(Step("call", Origin(), origins))
    parts = {part.what: part for part in clock.finish() if part.where == "call"}

    assert parts["sin and cos"].seconds == 0.5
    assert parts["sin and cos"].lines == ("a.py:1", "a.py:2")
    assert parts["operator 2"].seconds == 0.25
    assert parts["operator 2"].lines == ()


def test_border_copies_count_for_their_only_operator():
    """The time to copy an input counts for the operator that reads it, if only one does.

    The time to copy an output counts for the operator that computes it.
    """

    class Ends(torch.nn.Module):
        def forward(self, x, y):
            z = torch.sin(x)
            return z + y, torch.cos(y) * 2

    lowered = delegraph.lower(
        Ends().eval(), (torch.ones(8), torch.ones(8)), backends=["tosa"]
    )
    [delegate] = lowered.delegates
    # the delegate has two inputs and two outputs, so place 2 does not exist
    inputs = [Border("input", place) for place in range(3)]
    outputs = [Border("output", place) for place in range(3)]

    clock = profiling._Clock()
    clock.spent(
        delegate,
        1.0,
        lambda: {border: {"seconds": 0.0625} for border in inputs + outputs},
    )
    parts = clock.finish()

    code = {
        part.identifier: [line.code for line in part.lines]
        for part in parts
        if part.identifier
    }
    assert code[inputs[0]] == ["z = torch.sin(x)"]
    assert code[inputs[1]] == []  # both z + y and torch.cos(y) read it
    assert code[inputs[2]] == []
    assert code[outputs[0]] == ["return z + y, torch.cos(y) * 2"]
    assert code[outputs[1]] == ["return z + y, torch.cos(y) * 2"]
    assert "handing over input 1" in {part.what for part in parts}


@pytest.fixture
def reads():
    """Return the list of the times that were read from the runtime so far."""
    return []


@pytest.fixture
def report_call(reads):
    """Return a function that tells a clock about a call of a delegate of 1 second.

    ``seconds`` of it are on no operator; the clock reads them later.
    """
    lowered = delegraph.lower(Net().eval(), (torch.eye(8),), backends=["compiler-demo"])
    delegate = lowered.delegates[0]

    def report(clock, seconds):
        def read():
            reads.append(seconds)
            return {None: {"seconds": seconds}}

        clock.spent(delegate, 1.0, read)

    return report


def test_times_are_read_after_the_call_or_before_another(reads, report_call):
    clock = profiling._Clock()
    clock.begin({})

    report_call(clock, 0.25)
    assert reads == []
    report_call(clock, 0.5)
    assert reads == [0.25]
    parts = clock.finish()

    assert reads == [0.25, 0.5]
    # each call has the time on no operator, and the rest of its second
    assert [part.seconds for part in parts] == [0.25, 0.75, 0.5, 0.5]


def test_times_of_a_call_that_fails_are_not_read(reads, report_call):
    clock = profiling._Clock()
    clock.begin({})
    report_call(clock, 2.0)

    clock.begin({})  # without finish(), because the call failed

    assert clock.finish() == []
    assert reads == []


def profile_with_times(watched, plain):
    """Return a profile of calls with these times.

    ``watched`` and ``plain`` are the seconds of calls with and without a clock. The
    calls alternate, and the first of each is a warm-up.
    """
    watched_times = iter(watched)
    plain_times = iter(plain)
    return profiling._profile_calls(
        "forward",
        len(watched) - 1,
        profiling._Clock(),
        lambda: next(watched_times),
        lambda: next(plain_times),
        {},
    )


def test_overhead_is_measured_by_pairs_of_adjacent_calls():
    """A machine that is slower for a while does not change the overhead."""
    profile = profile_with_times(
        watched=[9.0, 2.0, 6.0, 6.0, 2.0, 2.0], plain=[9.0, 1.0, 3.0, 3.0, 1.0, 1.0]
    )

    assert profile.watching == 2.0
    assert profile.to_json()["watching"] == 2.0


def test_overhead_differs_from_the_ratio_of_the_medians():
    profile = profile_with_times(
        watched=[9.0, 2.0, 8.0, 8.0], plain=[9.0, 1.0, 8.0, 2.0]
    )

    assert profile.watching == 2.0  # the median of 2/1, 8/8 and 8/2
    assert profile.seconds / profile.plain_seconds == 4.0  # 8/2


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
    """Return a profile of a call of 2 seconds with these parts."""
    return ProgramProfile(
        method="forward",
        repeats=1,
        seconds=2.0,
        fastest=2.0,
        slowest=2.0,
        plain_seconds=2.0,
        watching=1.0,
        first_seconds=3.0,
        load=None,
        parts=parts,
        expected={"d": {"cycles": 7}},
    )


def test_concurrent_operators_are_shown_as_shares_of_their_sum():
    line = Source("net.py", 3, "forward", "x")
    profile = profile_of(Part("0", "d", 3.0, (line,)), Part("1", "d", 1.0))

    text = str(profile)

    assert profile.total == 3.0 + 1.0
    assert profile.attributed == 0.75
    assert (
        "a runtime ran operators at the same time: their times add up to 4000.000 ms"
        in text
    )
    assert "75%" in text
    assert "7 cycles" in text


def test_control_characters_of_source_lines_are_escaped():
    line = Source("net.py", 3, "forward", "x\ncan run: yes\x1b[2J")

    text = str(profile_of(Part("0", "d", 3.0, (line,))))

    assert "\x1b" not in text
    assert "\ncan run" not in text


@pytest.fixture
def reports(path, tmp_path):
    """Return a folder with the reports of a profile, of which there are four kinds."""
    words = ["profile", f"{path}:net", "--backend", "tosa", "--repeats", "1"]
    for name in ("r.html", "r.nodes.json", "r.json", "r.txt"):
        words += ["--report", str(tmp_path / name)]
    assert main(words) == 0
    return tmp_path


def test_times_are_colours_of_the_page(reports):
    page = (reports / "r.html").read_text()

    assert "Where the time of a call goes" in page
    assert "20 % or more" in page
    assert ' e4"' in page  # the style of the hottest nodes


def test_times_are_a_column_of_node_data(reports):
    content = json.loads((reports / "r.milliseconds.json").read_text())

    results = content["graph"]["results"]
    assert {"linear", "sin", "linear_1"} <= results.keys()
    assert all(row["value"] >= 0 for row in results.values())


def test_text_and_json_reports_have_the_profile(reports):
    content = json.loads((reports / "r.json").read_text())

    assert content["profile"]["forward"]["repeats"] == 1
    assert "by module:" in (reports / "r.txt").read_text()


def test_pictures_show_times_of_nodes_and_of_groups():
    times = Times(
        profile_of(
            Part("0", "d", 0.5, nodes=("a", "b")),
            Part("1", "d", 0.01, nodes=("a",)),
            Part("add", "host", 1.49),
        )
    )

    # 4 is the hottest: a fifth of the call or more; c has no time
    assert times.heat("d") == 4
    assert times.heat("d", "a") == 4
    assert times.heat("d", "b") == 4
    assert times.heat("d", "c") == 0
    assert list(times.shown("d", "a")) == ["510 ms, 25.5%, 2 operators together"]
    assert list(times.lines("d", "b")) == ["0: 500 ms for this and 1 more"]


def test_pages_refuse_profiles_of_another_type():
    lowered = delegraph.lower(Net().eval(), (torch.eye(8),), backends=[])

    with pytest.raises(InputError, match="not the result of profile"):
        render_page(lowered.report, {}, {"forward": 3})


@pytest.mark.parametrize("repeats", [0, -1, 1.5, True])
def test_wrong_repeats_are_refused(repeats):
    lowered = delegraph.lower(Net().eval(), (torch.eye(8),), backends=[])

    with pytest.raises(InputError, match="repeats is a positive number of calls"):
        lowered.profile(torch.eye(8), repeats=repeats)


def test_missing_inputs_are_refused():
    lowered = delegraph.lower(Net().eval(), (torch.eye(8),), backends=[])

    with pytest.raises(InputError):
        lowered.profile(repeats=1)


PROFILE_WORDS = ("--backend", "compiler-demo", "--repeats", "2")


def test_profile_command_prints_tables(path, capsys):
    assert main(["profile", f"{path}:net", *PROFILE_WORDS]) == 0

    stdout = capsys.readouterr().out
    assert stdout.startswith("method forward: ")
    assert "by line:" in stdout
    assert "by module:" in stdout
    assert "by place:" in stdout


def test_profile_command_prints_json(path, capsys):
    assert main(["profile", f"{path}:net", *PROFILE_WORDS, "--json"]) == 0

    [method] = json.loads(capsys.readouterr().out)["methods"]
    assert method["repeats"] == 2
    assert {"lines", "modules", "places", "parts", "attributed"} <= method.keys()
    lines = [line for part in method["parts"] for line in part["lines"]]
    assert any(line.endswith("net.py:10") for line in lines)


class Summing(Net):
    def forward(self, x):
        return self.second(torch.cumsum(self.first(x), 1))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a folder with three programs.

    ``with.pte`` and ``bare.pte`` have two delegates and a host operator, with and
    without a debug file. ``whole.tosa`` is a single delegate.
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


def test_saved_programs_get_their_lines_from_the_debug_file(saved):
    profile = delegraph.load(saved / "with.pte").profile(torch.eye(8), repeats=2)

    assert profile.total == pytest.approx(profile.seconds, rel=0.1)
    lines = " ".join(name for name, _ in profile.by_line())
    assert "torch.cumsum(self.first(x), 1)" in lines
    assert "on no line" in lines
    places = {name for name, _ in profile.by_place()}
    assert places == {"BackendWithCompilerDemo 0", "BackendWithCompilerDemo 1", "host"}
    operators = {name for name, _ in profile.by_operator()}
    assert {"aten.cumsum.default", "aten.linear.default"} <= operators


def test_saved_programs_without_debug_file_have_no_lines(saved):
    profile = delegraph.load(saved / "bare.pte").profile(torch.eye(8), repeats=1)

    assert profile.attributed == 0
    assert "by line:" not in str(profile)
    assert "by operator:" in str(profile)


def test_delegate_files_are_timed_as_a_whole(saved, capsys):
    assert main(["profile", str(saved / "whole.tosa"), "--repeats", "1"]) == 0

    stdout = capsys.readouterr().out
    assert "0% of it on lines of the program" in stdout
    assert "TOSABackend" in stdout
    assert "by module" not in stdout


def test_operators_of_tosa_files_keep_their_source_lines(tmp_path):
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

    profile = delegraph.load(tmp_path / "m.tosa").profile(torch.ones(3), repeats=1)

    operators = {}
    for part in profile.parts:
        for line in part.lines:
            _, _, code = str(line).partition(": ")
            operators[code] = part.what
    # of the three operators in the last line, the last one is in the dictionary
    assert operators == {
        "y = x.dim() and x.sin()": "aten.sin.default",
        "return (y + x.cos()).abs()": "aten.abs.default",
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"schema": "delegraph.pte-debug/1", "methods": {"forward": {}}}',
            "is not the debug file of other.pte",
        ),
        (
            '{"schema": "delegraph.pte-debug/1", "methods": {"forward": '
            '{"instructions": [1], "delegates": [], "operators": {}}}}',
            "it lists 1 instructions and 0 delegates",
        ),
        ("[", "is not a debug file"),
    ],
)
def test_a_debug_file_of_another_program_is_an_error(saved, content, message):
    (saved / "other.pte").write_bytes((saved / "bare.pte").read_bytes())
    (saved / "other.debug.json").write_text(content)

    with pytest.raises(FormatError, match=message):
        delegraph.load(saved / "other.pte").profile(torch.eye(8), repeats=1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backend", "tosa"], "--backend"),
        (["--report", "r.html"], "--report"),
        (["--input", "no.npy"], "no.npy"),
    ],
)
def test_options_for_models_are_refused_for_files(saved, words, message, capsys):
    assert main(["profile", str(saved / "bare.pte"), *words]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def two_methods(tmp_path):
    """Return the words that profile a file with the methods encode and decode."""
    program = torch.export.export(torch.nn.Linear(8, 8), (torch.eye(8),))
    lowered = delegraph.lower(
        {"encode": program, "decode": program}, backends=["compiler-demo"]
    )
    lowered.save(tmp_path / "two.pte")
    return ["profile", str(tmp_path / "two.pte"), "--repeats", "1"]


def test_a_file_with_several_methods_needs_a_method_name(two_methods, capsys):
    assert main(two_methods) != 0

    stderr = capsys.readouterr().err
    assert "['encode', 'decode']" in stderr
    assert "--method" in stderr


def test_a_method_is_chosen_by_name(two_methods, capsys):
    assert main([*two_methods, "--method", "decode"]) == 0

    assert capsys.readouterr().out.startswith("method decode: ")
