"""``hf:`` and ``transformers:`` name models, and exports of transformers are lowered."""

import delegraph
import pytest
import torch
from delegraph.cli import main
from delegraph.errors import InputError

transformers = pytest.importorskip("transformers")
from delegraph_transformers.sources import read, read_cached  # noqa: E402

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 24,
}
REVISION = "0123456789abcdef0123456789abcdef01234567"


def trained_bert():
    """Return a classifier that was trained for some steps, and its accuracy.

    The class of a text is whether its first token is above 20.
    """
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, num_labels=2)
    model = transformers.BertForSequenceClassification(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        ids = torch.randint(40, (64, 8))
        loss = model(input_ids=ids, labels=(ids[:, 0] > 20).long()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def bert():
    return trained_bert()


@pytest.fixture(scope="module")
def cache(bert, tmp_path_factory):
    """Return a cache of Hugging Face with acme/bert, and acme/hollow without weights."""
    folder = tmp_path_factory.mktemp("hub")
    for name in ("bert", "hollow"):
        repository = folder / f"models--acme--{name}"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(REVISION)
        snapshot = repository / "snapshots" / REVISION
        (bert if name == "bert" else bert.config).save_pretrained(snapshot)
    return folder


@pytest.fixture
def here(cache, monkeypatch):
    """Make ``cache`` the cache of this process."""
    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


def test_the_command_lowers_a_model_of_the_cache(here, tmp_path, capsys):
    file = tmp_path / "bert.tosa"
    words = ["lower", "hf:acme/bert", "--backend", "tosa", "-o", str(file), "--verify"]
    assert main(words) == 0

    assert "agrees" in capsys.readouterr().out
    assert file.stat().st_size > 1000


@pytest.mark.parametrize("text", ["acme/bert", f"acme/bert@{REVISION}"])
def test_a_model_of_the_cache_has_its_class_and_inputs(text, here):
    found = read_cached(text)

    assert type(found["model"]) is transformers.BertForSequenceClassification
    assert found["kwargs"]["input_ids"].shape == (1, 24)


def test_a_classifier_of_the_cache_keeps_its_answers(here, bert):
    found = read_cached("acme/bert")
    lowered = delegraph.lower(
        found["model"], example_kwargs=found["kwargs"], backends=["tosa"]
    )
    ids = torch.randint(40, (1, 24), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)

    result = lowered(input_ids=ids, attention_mask=mask)

    with torch.no_grad():
        expected = bert(input_ids=ids, attention_mask=mask)
    torch.testing.assert_close(result.logits, expected.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        ("acme/none", "has no acme/none", "run: hf download acme/none"),
        ("acme/bert@v2", "has no acme/bert@v2", "hf download acme/bert --revision v2"),
        ("acme/bert/x", "is not a name on Hugging Face", "transformers:FOLDER"),
    ],
)
def test_models_that_are_not_in_the_cache_are_refused(text, reason, hint, here):
    with pytest.raises(InputError, match=reason) as caught:
        read_cached(text)

    assert hint in caught.value.hint


def test_models_without_weights_in_the_cache_are_refused(here):
    with pytest.raises(InputError, match="cannot read the checkpoint"):
        read_cached("acme/hollow")


def test_a_checkpoint_without_some_weights_is_refused(bert, tmp_path):
    bert.bert.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    text = config.read_text()
    assert '"BertModel"' in text
    config.write_text(text.replace("BertModel", "BertForSequenceClassification"))
    with pytest.raises(InputError, match="lacks 2 weights of .*such as classifier.b"):
        read(str(tmp_path))


def test_tied_weights_are_not_missing(tmp_path):
    config = transformers.LlamaConfig(**SIZES, tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    assert read(str(tmp_path))["methods"].keys() == {"prefill", "decode"}


def test_models_of_images_get_an_image_of_their_size():
    config = transformers.ViTConfig(**SIZES, image_size=8, patch_size=4)

    found = read(transformers.ViTForImageClassification(config).eval())

    assert found["kwargs"]["pixel_values"].shape == (1, 3, 8, 8)


def test_models_with_unknown_inputs_are_refused():
    config = transformers.Wav2Vec2Config(
        **SIZES, conv_dim=(8,), conv_kernel=(3,), conv_stride=(2,)
    )

    with pytest.raises(InputError, match="takes input_values; there is no example"):
        read(transformers.Wav2Vec2ForCTC(config).eval())


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES)
    return transformers.LlamaForCausalLM(config).eval()


def export_with_transformers(llama, method):
    """Return the result of this method of transformers' own exporter."""
    exporters = pytest.importorskip("transformers.exporters")
    ids = torch.tensor([[1, 2, 3, 4]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    exporter = exporters.DynamoExporter()
    return getattr(exporter, method)(llama, inputs, exporters.DynamoConfig())


def test_exports_of_transformers_compute_as_eager(llama):
    export = export_with_transformers(llama, "export")
    _, inputs = export.program.example_inputs

    lowered = delegraph.lower(export, backends=["tosa"])

    assert lowered.methods == ["forward"]
    assert lowered.delegates
    with torch.no_grad():
        expected = llama(**inputs).logits
    logits = lowered(**inputs)["logits"]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_exports_of_transformers_are_lowered_to_xnnpack(llama):
    pytest.importorskip("executorch")
    export = export_with_transformers(llama, "export")

    lowered = delegraph.lower(export, backends=["xnnpack"])

    assert lowered.methods == ["forward"]
    assert lowered.delegates


def test_saved_exports_are_lowered_with_a_method_for_each_stage(llama, tmp_path):
    export = export_with_transformers(llama, "export_for_generation")
    export.save_pretrained(tmp_path)

    found = read(str(tmp_path))
    lowered = delegraph.lower(found["methods"], backends=["tosa"])

    assert sorted(lowered.methods) == ["decode", "prefill"]
    assert not lowered.report.host_operators


def test_exports_for_engines_are_refused():
    exporters = pytest.importorskip("transformers.exporters")
    export = exporters.ExportedModel({}, "onnx")

    with pytest.raises(InputError, match="exported for onnx") as caught:
        read(export)

    assert "DynamoExporter" in caught.value.hint


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")
def test_the_programs_of_older_exporters_are_lowered(llama):
    integration = pytest.importorskip("transformers.integrations.executorch")
    llama.generation_config = transformers.GenerationConfig(
        use_cache=True,
        cache_implementation="static",
        max_length=16,
        cache_config={"batch_size": 1, "max_cache_len": 16},
    )
    program = integration.convert_and_export_with_cache(llama)
    lowered = delegraph.lower(program, backends=["tosa"])
    assert not lowered.report.host_operators
    inputs, given = program.example_inputs
    assert lowered.verify(*inputs, **given).agrees()
