"""``.aimodel`` folders, against Core AI's own API."""

import asyncio
import json
import zipfile

import delegraph
import numpy as np
import pytest
import torch
from delegraph.errors import FormatError, InputError
from torch import nn

pytest.importorskip("coreai_torch")
from coreai.authoring.asset import AIModelAsset
from coreai.runtime import NDArray


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, image, scale, ids):
        rows = nn.functional.embedding(ids, self.layer.weight)
        return self.layer(image) * scale, image, rows


def saved(tmp_path, model=None, inputs=None, **kwargs):
    inputs = inputs or (torch.randn(2, 64), torch.ones(1), torch.tensor([3, 4]))
    model = (model or Net()).eval()
    lowered = delegraph.lower(model, inputs, backends=["coreai"], **kwargs)
    path = tmp_path / "net.aimodel"
    lowered.save(path)
    return path, model, inputs


def run_by_core_ai(path, inputs):
    """Run a folder by Core AI's own API."""

    async def run():
        async with AIModelAsset.load(path).executable() as model:
            function = model.load_function("main")
            arrays = {name: NDArray(array) for name, array in inputs.items()}
            results = await function(arrays)
            return [results[name].numpy().copy() for name in function.desc.output_names]

    return asyncio.run(run())


def test_a_file_has_the_names_and_the_order_of_forward(tmp_path):
    batch = torch.export.Dim("batch")
    path, model, inputs = saved(tmp_path, dynamic_shapes=({0: batch}, None, None))
    summary = delegraph.load(path).summary
    assert [str(i) for i in summary.methods[0].inputs] == [
        "image: float32[?, 64]",
        "scale: float32[1]",
        "ids: int32[2]",
    ]
    assert summary.producer.startswith("delegraph-coreai ")
    image = torch.randn(5, 64)
    arrays = {
        "scale": inputs[1].numpy(),
        "image": image.numpy(),
        "ids": inputs[2].int().numpy(),
    }
    expected = model(image, *inputs[1:])
    for result, value in zip(run_by_core_ai(path, arrays), expected, strict=True):
        np.testing.assert_allclose(result, value.detach(), rtol=1e-5, atol=1e-6)


def test_a_file_is_read_back(tmp_path):
    path, model, inputs = saved(tmp_path)
    loaded = delegraph.load(path)
    image, scale, ids = (*inputs[:2], inputs[2].int())
    expected = model(*inputs)
    for results in (
        loaded(image, scale, ids),
        loaded(scale=scale, image=image, ids=ids),
    ):
        for result, value in zip(results, expected, strict=True):
            torch.testing.assert_close(result, value)
    with pytest.raises(InputError, match="takes image, scale, ids"):
        loaded(image)


def test_a_file_is_replaced(tmp_path):
    saved(tmp_path)
    (tmp_path / "net.aimodel" / "stale").write_text("")
    saved(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["net.aimodel"]
    assert not (tmp_path / "net.aimodel" / "stale").exists()


def test_a_partly_delegated_program_is_refused(tmp_path):
    class Partly(nn.Module):
        def forward(self, x):
            return torch.linalg.inv(x.exp())

    with pytest.raises(InputError, match="host operators: 1"):
        saved(tmp_path, Partly(), (torch.randn(3, 3),))
    assert not list(tmp_path.iterdir())


def test_commands_take_a_folder(tmp_path, capsys):
    from delegraph.cli import main

    path, _, _ = saved(tmp_path)
    assert main(["inspect", str(path), "--verify"]) == 0
    assert main(["run", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "accepted by Core AI" in printed and "output_2" in printed


@pytest.mark.parametrize("name", ["main.mlirb", "main.hash", "metadata.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_a_damaged_file_is_an_error(tmp_path, name, damage):
    path, _, inputs = saved(tmp_path)
    file = path / name
    content = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 3] ^= 255
        file.write_bytes(content)
    with pytest.raises(FormatError):
        delegraph.load(path)(*inputs)


def test_a_file_instead_of_a_folder_is_an_error(tmp_path):
    path = tmp_path / "net.aimodel"
    path.write_bytes(b"zipped")
    with pytest.raises(InputError, match="cannot read") as raised:
        delegraph.load(path)
    assert "is a folder: unpack it" in raised.value.hint


def test_metadata_name_no_file_of_this_machine(tmp_path):
    path, _, _ = saved(tmp_path)
    metadata = json.loads((path / "metadata.json").read_text())
    assert metadata["creatorDefinedMetadata"].keys() == {"delegraph.producer"}
    content = (path / "main.mlirb").read_bytes()
    assert b".py" not in content


# --- states and large weights ---------------------------------------------------------


class Cache(nn.Module):
    def __init__(self, first=0.0):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("kept", torch.full((4, 64), first))

    def forward(self, place, rows):
        self.kept.index_copy_(0, place, self.layer(rows))
        return self.kept.sum(0)


def cache_steps():
    return [(torch.tensor([k]), torch.randn(1, 64)) for k in range(3)]


def test_a_file_has_states_with_the_names_of_buffers(tmp_path):
    steps = cache_steps()
    path, model, _ = saved(tmp_path, Cache(), steps[0])
    expected = [model(*args) for args in steps]

    async def run():
        async with AIModelAsset.load(path).executable() as loaded:
            function = loaded.load_function("main")
            assert function.desc.state_names == ["kept"]
            state = {"kept": NDArray(np.zeros((4, 64), np.float32))}
            results = []
            for place, rows in steps:
                arrays = {
                    "place": NDArray(place.int().numpy()),
                    "rows": NDArray(rows.numpy()),
                }
                results.append(await function(arrays, state))
            (name,) = function.desc.output_names
            return [result[name].numpy().copy() for result in results]

    for result, value in zip(asyncio.run(run()), expected, strict=True):
        np.testing.assert_allclose(result, value.detach(), rtol=1e-5, atol=1e-6)


def test_a_file_with_states_is_read_back(tmp_path):
    steps = cache_steps()
    path, model, _ = saved(tmp_path, Cache(), steps[0])
    loaded = delegraph.load(path)
    for place, rows in steps:
        (result,) = loaded(place.int(), rows)
        torch.testing.assert_close(result, model(place, rows))


def test_a_state_of_a_file_begins_with_zeros(tmp_path):
    with pytest.raises(InputError, match="the buffer kept has other initial values"):
        saved(tmp_path, Cache(1.0), cache_steps()[0])
    assert not list(tmp_path.iterdir())


# --- archives -------------------------------------------------------------------------


def zipped(tmp_path):
    _, model, inputs = saved(tmp_path)
    lowered = delegraph.lower(model, inputs, backends=["coreai"])
    path = tmp_path / "Net.aimodel.zip"
    lowered.save(path)
    return path, model, inputs


def test_an_archive_holds_a_folder(tmp_path):
    path, model, inputs = zipped(tmp_path)
    image, scale, ids = (*inputs[:2], inputs[2].int())
    results = delegraph.load(path)(image, scale, ids)
    for result, value in zip(results, model(*inputs), strict=True):
        torch.testing.assert_close(result, value)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "unpacked")
    (folder,) = (tmp_path / "unpacked").iterdir()
    assert folder.name == "Net.aimodel"
    assert len(delegraph.load(folder)(image, scale, ids)) == 3


def test_commands_take_an_archive(tmp_path, capsys):
    from delegraph.cli import main

    path, _, _ = zipped(tmp_path)
    assert main(["inspect", str(path), "--verify"]) == 0
    assert main(["run", str(path)]) == 0
    assert "accepted by Core AI" in capsys.readouterr().out


DAMAGES = ["cut", "changed", "place", "name", "password", "text", "empty", "two"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_archive_is_an_error(tmp_path, damage):
    path, _, inputs = zipped(tmp_path)
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "changed":
        content[len(content) // 3] ^= 255
        path.write_bytes(content)
    elif damage in ("place", "name", "password"):
        entry = content.index(b"PK\x01\x02")
        if damage == "place":  # the directory begins before the file
            content[content.rindex(b"PK\x05\x06") + 16 + 2] = 255
        elif damage == "name":
            content[entry + 9] |= 8  # names are UTF-8
            content[entry + 46] = 255
        else:
            content[entry + 8] |= 1
            content[content.index(b"PK\x01\x02", entry + 1) + 8] |= 1
        path.write_bytes(content)
    elif damage == "text":
        path.write_text("no archive")
    elif damage == "empty":
        zipfile.ZipFile(path, "w").close()
    else:
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("other.aimodel/main.mlirb", b"")
    with pytest.raises(FormatError):
        delegraph.load(path)(*inputs)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_of_archives_are_refused(tmp_path, method):
    path, _, _ = zipped(tmp_path)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    with pytest.raises(FormatError, match="stored or deflated"):
        delegraph.load(path)


def test_an_archive_unpacks_to_a_bounded_size(tmp_path, monkeypatch):
    from delegraph_coreai import zipped as module

    path, _, _ = zipped(tmp_path)
    monkeypatch.setattr(module, "_SMALL", 1 << 20)
    delegraph.load(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for part in module._PARTS:
            archive.writestr(f"net.aimodel/{part}", bytes(1 << 20))
    with pytest.raises(FormatError, match="at most 32 times its size"):
        delegraph.load(path)
