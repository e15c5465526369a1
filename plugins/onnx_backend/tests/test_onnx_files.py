"""``.onnx`` files, against onnx.checker and ONNX Runtime's own session."""

import delegraph
import numpy as np
import pytest
import torch
from delegraph.errors import DelegraphError, FormatError, InputError
from torch import nn

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, image, scale):
        return self.layer(image) * scale, image


def saved(tmp_path, model=None, inputs=None, **kwargs):
    inputs = inputs or (torch.randn(2, 64), torch.ones(1))
    model = (model or Net()).eval()
    lowered = delegraph.lower(model, inputs, backends=["onnx"], **kwargs)
    path = tmp_path / "net.onnx"
    lowered.save(path)
    return path, model, inputs


def test_a_file_has_the_names_and_the_order_of_forward(tmp_path):
    batch = torch.export.Dim("batch")
    path, model, inputs = saved(tmp_path, dynamic_shapes=({0: batch}, None))
    onnx.checker.check_model(str(path), full_check=True)
    session = ort.InferenceSession(str(path))
    assert [value.name for value in session.get_inputs()] == ["image", "scale"]
    assert isinstance(session.get_inputs()[0].shape[0], str)
    image = torch.randn(5, 64)
    feeds = {"scale": inputs[1].numpy(), "image": image.numpy()}
    for result, expected in zip(
        session.run(None, feeds), model(image, inputs[1]), strict=True
    ):
        np.testing.assert_allclose(result, expected.detach(), rtol=1e-5, atol=1e-6)
    written = onnx.load(path)
    assert written.producer_name == "delegraph-onnx" and written.producer_version
    assert [opset.version for opset in written.opset_import] == [20]


def test_a_file_is_read_back(tmp_path):
    path, model, inputs = saved(tmp_path)
    loaded = delegraph.load(path)
    expected = model(*inputs)
    for results in (loaded(*inputs), loaded(scale=inputs[1], image=inputs[0])):
        for result, value in zip(results, expected, strict=True):
            torch.testing.assert_close(result, value)
    summary = loaded.summary
    assert [str(i) for i in summary.methods[0].inputs] == [
        "image: float32[2, 64]",
        "scale: float32[1]",
    ]
    assert summary.producer.startswith("delegraph-onnx ")
    with pytest.raises(InputError, match="takes image, scale"):
        loaded(inputs[0])


def test_weights_beyond_the_limit_are_in_a_second_file(tmp_path, monkeypatch):
    monkeypatch.setattr("delegraph_onnx.format.LARGEST", 4096)
    path, model, inputs = saved(tmp_path)
    beside = tmp_path / "net.onnx.data"
    assert beside.stat().st_size == 64 * 64 * 4
    onnx.checker.check_model(str(path), full_check=True)
    feeds = {"image": inputs[0].numpy(), "scale": inputs[1].numpy()}
    own = ort.InferenceSession(str(path)).run(None, feeds)
    np.testing.assert_allclose(own[0], model(*inputs)[0].detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(delegraph.load(path)(*inputs)[0], model(*inputs)[0])
    beside.unlink()
    with pytest.raises(FormatError, match="not in the folder of the model"):
        delegraph.load(path)(*inputs)


def test_a_second_file_has_each_weight_at_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr("delegraph_onnx.format.LARGEST", 4096)
    layers = [nn.Linear(48 + k, 49 + k) for k in range(12)]
    path, model, (x,) = saved(tmp_path, nn.Sequential(*layers), (torch.randn(2, 48),))
    (own,) = ort.InferenceSession(str(path)).run(None, {"input": x.numpy()})
    np.testing.assert_allclose(own, model(x).detach(), rtol=1e-4, atol=1e-6)


def test_a_partly_delegated_program_is_refused(tmp_path):
    class Partly(nn.Module):
        def forward(self, x):
            return torch.linalg.inv(x.exp())

    with pytest.raises(InputError, match="host operators: 1"):
        saved(tmp_path, Partly(), (torch.randn(3, 3),))
    assert not list(tmp_path.iterdir())


def test_files_written_by_torch_onnx_run(tmp_path):
    path = tmp_path / "other.onnx"
    inputs = (torch.randn(2, 64), torch.ones(1))
    model = Net().eval()
    program = torch.export.export(model, inputs)
    torch.onnx.export(program, dynamo=True, verbose=False).save(path)
    results = delegraph.load(path)(*inputs)
    torch.testing.assert_close(results[0], model(*inputs)[0])


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x0a", None])
def test_a_damaged_file_is_an_error(tmp_path, content):
    path, _, inputs = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:9000] if content is None else content)
    with pytest.raises(FormatError):
        delegraph.load(path)(*inputs)
    from delegraph_onnx.format import OnnxFormat

    verdicts = OnnxFormat.verify(path)
    assert [verdict.accepted for verdict in verdicts] == [False, False]


def changed(path, change):
    """Write the model at ``path`` again after ``change(graph)``."""
    model = onnx.load(path)
    change(model.graph)
    path.write_bytes(model.SerializeToString())


def name_an_unknown_operator(graph):
    graph.node[0].op_type = "Nonesuch"


def read_a_value_that_no_node_computes(graph):
    graph.node[0].input[0] = "nowhere"


def declare_another_type(graph):
    graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64


def take_strings(graph):
    graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.STRING


def take_a_sequence(graph):
    item = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2])
    graph.input[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(item))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (name_an_unknown_operator, "Nonesuch"),
        (read_a_value_that_no_node_computes, "nowhere"),
        (declare_another_type, "int64"),
        (take_strings, "input or output image: string"),
        (take_a_sequence, "input or output image: undefined"),
    ],
)
def test_a_file_that_is_no_program_is_an_error(tmp_path, change, text):
    path, _, inputs = saved(tmp_path)
    changed(path, change)
    with pytest.raises(FormatError, match=text):
        delegraph.load(path)(*inputs)


@pytest.mark.parametrize(
    "wrong",
    [
        (torch.ones(2, 63), torch.ones(1)),
        (torch.ones(2, 64, 1), torch.ones(1)),
        (torch.ones(2, 64, dtype=torch.int64), torch.ones(1)),
        (torch.ones(2, 64),),
        (torch.ones(2, 64), 1.0),
    ],
)
def test_wrong_inputs_of_a_file_are_errors(tmp_path, wrong):
    path, _, inputs = saved(tmp_path)
    loaded = delegraph.load(path)
    with pytest.raises(InputError):
        loaded(*wrong)
    assert loaded(*inputs)


def compiled_by(provider, path, embedded=1):
    """Write a model that an execution provider has compiled, as its node says."""
    tensor = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    node = onnx.helper.make_node(
        "EPContext",
        ["x"],
        ["y"],
        domain="com.microsoft",
        source=f"{provider}ExecutionProvider",
        embed_mode=embedded,
        ep_cache_context="code.bin",
    )
    graph = onnx.helper.make_graph([node], "compiled", [tensor], [result])
    opsets = [onnx.helper.make_opsetid("com.microsoft", 1)]
    opsets.append(onnx.helper.make_opsetid("", 20))
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets), path)


def test_a_file_for_a_provider_that_is_not_installed_is_an_error(tmp_path):
    compiled_by("Nonesuch", tmp_path / "net.onnx")
    with pytest.raises(FormatError, match="'nonesuch' is not installed"):
        delegraph.load(tmp_path / "net.onnx")(torch.ones(2))


def test_code_of_a_provider_in_another_file_is_not_read(tmp_path):
    compiled_by("QNN", tmp_path / "net.onnx", embedded=0)
    with pytest.raises(FormatError, match="in another file, 'code.bin'"):
        delegraph.load(tmp_path / "net.onnx")(torch.ones(2))


def in_a_function(model, inner):
    """Move ``inner`` into a function, which the model calls."""
    opset = onnx.helper.make_opsetid("own", 1)
    function = onnx.helper.make_function(
        "own", "Inner", [], list(inner.output), [inner], list(model.opset_import)
    )
    model.functions.append(function)
    model.opset_import.append(opset)
    call = onnx.helper.make_node("Inner", [], list(inner.output), domain="own")
    model.graph.node.append(call)


def in_a_branch(model, inner):
    """Move ``inner`` into both branches of an If of a branch."""
    [name] = inner.output
    result = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2])
    for depth in range(2):
        branch = onnx.helper.make_graph([inner], f"branch{depth}", [], [result])
        inner = onnx.helper.make_node(
            "If", ["yes"], [name], then_branch=branch, else_branch=branch
        )
    yes = onnx.helper.make_tensor("yes", onnx.TensorProto.BOOL, [], [True])
    model.graph.initializer.append(yes)
    model.graph.node.append(inner)


@pytest.mark.parametrize("hide", [in_a_function, in_a_branch])
@pytest.mark.parametrize("kind", ["code", "constant"])
def test_no_other_file_is_read_from_a_function_or_a_branch(tmp_path, hide, kind):
    path, _, inputs = saved(tmp_path)
    model = onnx.load(path)
    if kind == "code":
        inner = onnx.helper.make_node(
            "EPContext",
            [],
            ["inner"],
            domain="com.microsoft",
            embed_mode=0,
            ep_cache_context="code.bin",
        )
        text = "in another file, 'code.bin'"
    else:
        constant = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [2], [1, 2])
        constant.ClearField("float_data")
        constant.data_location = onnx.TensorProto.EXTERNAL
        constant.external_data.add(key="location", value="code.bin")
        inner = onnx.helper.make_node("Constant", [], ["inner"], value=constant)
        text = "constant 'w' of 'Constant' is in another file"
    hide(model, inner)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(FormatError, match=text):
        delegraph.load(path)(*inputs)


def test_weights_of_a_branch_are_not_read_from_another_file(tmp_path):
    path, _, inputs = saved(tmp_path)
    model = onnx.load(path)
    in_a_branch(model, onnx.helper.make_node("Identity", ["w"], ["inner"]))
    weight = model.graph.node[-1].attribute[0].g.initializer.add(name="w")
    weight.data_location = onnx.TensorProto.EXTERNAL
    path.write_bytes(model.SerializeToString())
    with pytest.raises(FormatError, match="constant 'w' of 'If' is in another file"):
        delegraph.load(path)(*inputs)


def test_external_data_that_is_too_short_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("delegraph_onnx.format.LARGEST", 4096)
    path, _, inputs = saved(tmp_path)
    data = tmp_path / "net.onnx.data"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(FormatError):
        delegraph.load(path)(*inputs)


def test_a_file_that_cannot_be_written_leaves_no_second_file(tmp_path, monkeypatch):
    monkeypatch.setattr("delegraph_onnx.format.LARGEST", 4096)
    (tmp_path / "net.onnx").mkdir()
    with pytest.raises(DelegraphError):
        saved(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_external_data_in_another_folder_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("delegraph_onnx.format.LARGEST", 4096)
    path, _, inputs = saved(tmp_path)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../secret"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(FormatError, match="not in the folder of the model"):
        delegraph.load(path)(*inputs)
