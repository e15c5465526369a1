"""Where the time of a call goes: nothing is spread, nothing is counted twice, and what is on no line says so."""

import json

import delegraph
import pytest
import torch
from delegraph.cli import main
from delegraph.errors import InputError

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
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        y = torch.sin(self.first(x))
        return self.second(torch.linalg.inv_ex(y)[0])


@pytest.mark.parametrize("backends", [["tosa"], ["compiler-demo"], []])
def test_the_parts_are_the_whole(backends):
    lowered = delegraph.lower(Net().eval(), (torch.eye(8),), backends=backends)
    found = lowered.profile(torch.eye(8), repeats=3)
    assert found.repeats == 3 and found.fastest <= found.seconds <= found.slowest
    total = sum(part.seconds for part in found.parts)
    assert total == pytest.approx(found.seconds, rel=0.05)
    for table in (found.by_line(), found.by_module(), found.by_place()):
        assert sum(seconds for _, seconds in table) == pytest.approx(total)
        assert [seconds for _, seconds in table] == sorted((s for _, s in table), reverse=True)
    assert {name for name, _ in found.by_module()} >= {"first", "second", "in no module"}
    assert {name for name, _ in found.by_place()} == {"host", *(d.name for d in lowered.delegates)}
    code = " ".join(name for name, _ in found.by_line())
    assert "self.first(x)" in code and "linalg.inv_ex" in code and "on no line" in code


def test_what_lines_were_fused_into_is_counted_under_all_of_them():
    class Fused(torch.nn.Module):
        def forward(self, x):
            y = x.reshape(4, 2)
            return y.reshape(2, 4)

    found = delegraph.lower(Fused().eval(), (torch.ones(8),), backends=["tosa"]).profile(torch.ones(8), repeats=1)
    assert all(part.seconds >= 0 for part in found.parts)
    lines = [part.lines for part in found.parts if part.where != "host" and part.lines]
    assert any(len(listed) == 2 for listed in lines)


def test_inputs_in_another_number_and_repeats_of_none_are_errors():
    lowered = delegraph.lower(Net().eval(), (torch.eye(8),), backends=[])
    for repeats in (0, -1, 1.5, True):
        with pytest.raises(InputError, match="repeats is a positive number of calls"):
            lowered.profile(torch.eye(8), repeats=repeats)
    with pytest.raises(InputError):
        lowered.profile(repeats=1)


def test_the_command_prints_it_as_text_and_json(path, capsys):
    words = ["profile", f"{path}:net", "--backend", "compiler-demo", "--repeats", "2"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert (
        shown.startswith("method forward: ") and "by line:" in shown and "by module:" in shown and "by place:" in shown
    )
    assert main([*words, "--json"]) == 0
    [method] = json.loads(capsys.readouterr().out)["methods"]
    assert method["repeats"] == 2 and {"lines", "modules", "places", "parts", "attributed"} <= method.keys()
    assert any(line.endswith("net.py:10") for part in method["parts"] for line in part["lines"])
