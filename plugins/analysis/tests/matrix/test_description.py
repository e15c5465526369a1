"""What a matrix is: its file, its cells, and what their identities depend on."""

import json
import shutil

import pytest
from delegraph.errors import InputError, OptionError, UsageError
from delegraph_analysis.matrix import cells, description
from delegraph_analysis.matrix.rows import counts_for

TOML = """
models = ["zoo.py:small", { model = "zoo.py:inverse", name = "inverse 3x3", calibration = "data.npz" }]
backends = ["tosa", ["demo", "tosa"], [], { backends = ["tosa"], name = "tosa 1.1", options.tosa.spec = "TOSA-1.1+FP" }]
quantize = ["float", "int8", { name = "mine", quantizer = "zoo.py:small" }]
depends = ["helper.py"]
options.tosa.locations = true

[settings]
runs = 2
time_limit = 60
files = [".tosa"]
"""


@pytest.fixture
def read_changed_matrix(folder):
    for name, content in (("m.toml", TOML), ("data.npz", "data"), ("helper.py", "")):
        (folder / name).write_text(content)
    return lambda **changes: description.read_matrix(folder / "m.toml")


def by_key(listed):
    return {cell.key: cell for cell in listed}


def test_file_describes_models_targets_and_settings(read_changed_matrix):
    found = read_changed_matrix()
    assert [m.name for m in found.models] == ["small", "inverse 3x3"]
    assert [t.name for t in found.targets] == [
        "tosa",
        "demo + tosa",
        "host",
        "tosa 1.1",
    ]
    assert found.targets[3].options == {
        "tosa": {"locations": True, "spec": "TOSA-1.1+FP"}
    }
    assert found.targets[2].backends == ()
    assert not found.targets[2].options
    assert found.settings.runs == 2
    assert found.settings.files == (".tosa",)
    assert found.settings.time_limit == 60.0
    listed = cells.cells_of(found)
    assert len(listed) == len({cell.identity for cell in listed}) == 2 * 4 * 3
    assert json.dumps(listed[0].job())


def test_cell_identities_depend_on_contents_and_not_on_folders(
    read_changed_matrix, folder
):
    before = by_key(cells.cells_of(read_changed_matrix()))
    shutil.copytree(folder, folder / "moved")
    moved = by_key(cells.cells_of(description.read_matrix(folder / "moved/m.toml")))
    assert {k: c.identity for k, c in moved.items()} == {
        k: c.identity for k, c in before.items()
    }

    def changed(name, old, new):
        path = folder / name
        text = path.read_text()
        path.write_text(text.replace(old, new) if old else new)
        after = by_key(cells.cells_of(read_changed_matrix()))
        path.write_text(text)
        return {key for key in before if before[key].identity != after[key].identity}

    assert not changed("m.toml", "time_limit = 60", "time_limit = 61")
    assert (
        changed("m.toml", "runs = 2", "runs = 3")
        == changed("helper.py", "", "x = 1")
        == {*before}
    )
    assert changed("zoo.py", "loaded small", "loaded it") == {*before}
    assert {key[0] for key in changed("data.npz", "", "other")} == {"inverse 3x3"}
    assert {key[2] for key in changed("data.npz", "", "other")} == {"int8", "mine"}
    assert {key[1] for key in changed("m.toml", "TOSA-1.1+FP", "TOSA-1.0+FP")} == {
        "tosa 1.1"
    }


def test_cells_depend_on_the_file_of_weights(read_changed_matrix, folder):
    text = 'models = ["zoo.py:small", "zoo.py:small@w.pt"]\nbackends = ["tosa"]\n'
    read_changed_matrix()
    (folder / "m.toml").write_text(text)
    identities = []
    for content in ("first", "second"):
        (folder / "w.pt").write_text(content)
        matrix = description.read_matrix(folder / "m.toml")
        found = by_key(cells.cells_of(matrix))
        identities.append({key[0]: cell.identity for key, cell in found.items()})
    first, second = identities
    assert first.keys() == {"small", "small@w.pt"}
    assert first["small"] == second["small"]
    assert first["small@w.pt"] != second["small@w.pt"]
    places = {
        "zoo.py:small@w.pt": f"{folder / 'zoo.py'}:small@{folder / 'w.pt'}",
        "a@b.py": str(folder / "a@b.py"),
        "timm:net@w.pt": "timm:net@w.pt",
    }
    for model, place in places.items():
        assert description.place_of(model, folder) == place


def test_a_model_with_another_name_is_another_row(read_changed_matrix, folder):
    before = {cell.identity for cell in cells.cells_of(read_changed_matrix())}
    (folder / "m.toml").write_text(TOML.replace("inverse 3x3", "inverse"))
    after = {
        cell.identity: cell.key[0] for cell in cells.cells_of(read_changed_matrix())
    }
    assert {name for identity, name in after.items() if identity not in before} == {
        "inverse"
    }


def test_versions_are_of_all_that_lowers(folder):
    own = cells.versions_of([], "", [])
    assert own.keys() >= {"delegraph", "torch"}
    assert "delegraph-tosa" not in own
    assert cells.versions_of(["tosa"], "", []).keys() - own.keys() >= {"delegraph-tosa"}
    assert cells.versions_of(
        [], cells.scheme_of("timm:resnet18"), []
    ).keys() - own.keys() >= {"delegraph-vision"}
    assert cells.versions_of([], cells.scheme_of("zoo.py:small"), []) == own
    assert cells.versions_of([], "", [".pte"]).keys() - own.keys() >= {
        "delegraph-executorch"
    }


def test_a_row_that_failed_is_so_under_its_limits_only(cells_for):
    cell = cells_for("small", time_limit=9.0)[0]
    row = {"error": None, "settings": {"time_limit": 1.0, "memory_limit": None}}
    assert counts_for(row, cell)
    assert not counts_for({**row, "error": {}}, cell)
    assert counts_for(
        {"error": {}, "settings": {"time_limit": 9.0, "memory_limit": None}}, cell
    )


def test_shards_have_each_cell_once(read_changed_matrix):
    listed = cells.cells_of(read_changed_matrix())
    shards = [cells.shard(listed, f"{k}/3") for k in (1, 2, 3)]
    assert sorted(c.identity for part in shards for c in part) == sorted(
        c.identity for c in listed
    )
    for wrong in ("0/3", "4/3", "3", "1/x"):
        with pytest.raises(UsageError, match="such as 1/4"):
            cells.shard(listed, wrong)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models = 3", "models is a list"),
        ("models = []", "models is a list of at least one"),
        (
            'models = ["a.py"]\nbackends = ["tosa"]\nmodles = 1',
            "has no 'modles'; it has models,",
        ),
        (
            'models = ["a.py", "b/a.py"]\nbackends = ["tosa"]',
            "two entries of models are called 'a'",
        ),
        (
            'models = ["a.py"]\nbackends = ["tosa"]\nquantize = "int4"',
            "'float' or 'int8' or a table",
        ),
        (
            'models = ["a.py"]\nbackends = ["tosa"]\nsettings.runs = -1',
            "runs is a number from 0 on, not -1",
        ),
        (
            'models = ["a.py"]\nbackends = ["tosa"]\nsettings.runs = true',
            "runs is a number from 0 on, not True",
        ),
        (
            'models = ["a.py"]\nbackends = ["tosa"]\nsettings.min_delegated = nan',
            "a share from 0 to 1, not nan",
        ),
        (
            (
                'models = ["a.py"]\nbackends = [{ backends = ["tosa"], options.demo.x ='
                " 1 }]"
            ),
            "options of demo in an entry",
        ),
        (
            'models = ["a.py"]\nbackends = ["tosa"]\noptions.demo.x = 1',
            "options of demo, which no entry of backends has",
        ),
        (
            'models = ["a.py"]\nbackends = [["demo", "tosa", "demo"]]',
            "has the backend 'demo' twice",
        ),
        ("models = [", "cannot be read as TOML"),
        ("x = " + "[" * 5000, "cannot be read as TOML"),
    ],
)
def test_errors_in_matrix_files_name_file_and_entry(text, said, tmp_path):
    (tmp_path / "m.toml").write_text(text)
    with pytest.raises(InputError) as error:
        description.read_matrix(tmp_path / "m.toml")
    assert said in str(error.value)
    assert "m.toml" in str(error.value)


@pytest.mark.parametrize(
    ("option", "said"),
    [("nothing = 1", "no option 'nothing'"), ("spec = 3", "is str, not 3")],
)
def test_options_are_checked_before_any_cell(option, said, folder):
    (folder / "m.toml").write_text(
        f'models = ["zoo.py"]\nbackends = ["tosa"]\noptions.tosa.{option}'
    )
    with pytest.raises(OptionError, match=said):
        cells.cells_of(description.read_matrix(folder / "m.toml"))


def test_globs_expand_to_existing_files(folder):
    assert description.expand("*.py", folder) == ["zoo.py"]
    assert description.expand("none.py", folder) == ["none.py"], (
        "which is said to be missing later, by its name"
    )
    with pytest.raises(UsageError, match="no file in .* matches"):
        description.expand("*.nothing", folder)
