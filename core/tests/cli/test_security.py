"""SECURITY.md warns about files that run code. These tests keep the warning true."""

import io
import json
import os
import zipfile

import pytest
import torch
from delegraph.cli import main


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def attack(tmp_path):
    """Write a .pt2 file with a pickle that makes a folder, and return the folder's
    path.
    """
    program = torch.export.export(torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),))
    torch.export.save(program, tmp_path / "honest.pt2")
    made = tmp_path / "the_code_ran"
    pickled = io.BytesIO()
    torch.save(Attack(made), pickled)
    with (
        zipfile.ZipFile(tmp_path / "honest.pt2") as honest,
        zipfile.ZipFile(tmp_path / "model.pt2", "w") as prepared,
    ):
        for name in honest.namelist():
            content = honest.read(name)
            if name.endswith("weights_config.json"):
                config = json.loads(content)
                config["config"]["weight"]["use_pickle"] = True
                content = json.dumps(config).encode()
            if name.endswith("weights/weight_0"):
                content = pickled.getvalue()
            prepared.writestr(name, content)
    return made


def test_a_pt2_file_can_run_code_when_it_is_lowered(attack, capsys):
    """If this fails, torch refuses such files, and SECURITY.md may promise more."""
    assert main(["lower", str(attack.parent / "model.pt2"), "--backend", "tosa"]) == 1
    assert "error [format-invalid]" in capsys.readouterr().err
    assert attack.exists()
