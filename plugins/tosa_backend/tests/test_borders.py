"""``channels_last_borders`` makes programs take and return images with channels last."""

from collections import Counter
from functools import partial

import delegraph
import pytest
import torch
from delegraph.errors import InputError, Unsupported
from delegraph_tosa.borders import channels_last_borders, integer_borders
from delegraph_tosa.serialize import read
from torch import nn

from .support.quantized_cases import SPECS, dequantize, quantize
from .support.rule_cases import Function, randn

LAST = (0, 2, 3, 1)
INT8 = {"tosa": {"spec": str(SPECS[torch.int8])}}


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)
    ).eval()


def lower(
    module, inputs, transform=channels_last_borders, backends=("tosa",), **options
):
    return delegraph.lower(
        module, inputs, backends=list(backends), transforms=[transform], **options
    )


def channels_last(image):
    return image.permute(LAST).contiguous()


def count_operators(lowered):
    return Counter(
        op.name for op in read(lowered.delegates[0].processed_bytes).operators
    )


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convolutions_need_no_transposition(tmp_path, layout):
    module = network()
    image = randn(1, 3, 6, 5).to(memory_format=layout)

    lowered = lower(module, (image,), require_full=True)

    assert count_operators(lowered) == {"CONV2D": 2, "CLAMP": 1}
    expected = channels_last(module(image))
    for input in (channels_last(image), image.permute(LAST)):
        result = lowered(input)
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)
        assert result.is_contiguous()


def test_saved_file_takes_channels_last(tmp_path):
    module = network()
    image = randn(1, 3, 6, 5)
    lower(module, (image,), require_full=True).save(tmp_path / "network.tosa")

    loaded = delegraph.load(tmp_path / "network.tosa")

    (input,) = loaded.summary.methods[0].inputs
    assert str(input) == "input: float32[1, 6, 5, 3]"
    (result,) = loaded(channels_last(image))
    expected = channels_last(module(image))
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)
    assert result.is_contiguous()


def test_verify_refuses_inputs_that_the_transform_changed():
    image = randn(1, 3, 6, 5)
    lowered = lower(network(), (image,), require_full=True)

    with pytest.raises(
        InputError, match=r"is float32\[1, 6, 5, 3\] since a transform changed it"
    ):
        lowered.verify(channels_last(image))


@pytest.mark.parametrize(
    "transforms",
    [
        [integer_borders, channels_last_borders],
        [channels_last_borders, integer_borders],
    ],
)
def test_combines_with_integer_borders_in_either_order(transforms):
    def through(x):
        pooled = nn.functional.max_pool2d(
            dequantize(quantize(x, 0.1, 3, torch.int8), 0.1, 3), 2
        )
        return dequantize(quantize(pooled, 0.1, -5, torch.int8), 0.1, -5)

    module = Function(through).eval()
    image = randn(1, 3, 6, 5)
    lowered = delegraph.lower(
        module, (image,), backends=["tosa"], options=INT8, transforms=transforms
    )
    assert count_operators(lowered)["TRANSPOSE"] == 0
    assert not lowered.report.host_operators
    facts = lowered.report.delegates[0].facts
    assert facts["input args_0"] == "int8, scale 0.1, zero point 3"
    assert facts["output 0"] == "int8, scale 0.1, zero point -5"
    found = lowered(channels_last(quantize(image, 0.1, 3, torch.int8)))
    torch.testing.assert_close(
        dequantize(found, 0.1, -5), channels_last(module(image)), rtol=0, atol=0
    )


class Many(nn.Module):
    """Takes an image, a volume and a row. It writes to the image and returns it."""

    def forward(self, image, volume, row):
        memory = image.as_strided((4,), (7,), 3)
        pooled = nn.functional.avg_pool3d(volume, 2)
        image.mul_(2)
        return pooled + memory[0], row.cumsum(-1), image.transpose(0, 1)


@pytest.mark.parametrize("backends", [(), ("tosa",)])
def test_written_and_viewed_memory_crosses_borders(backends):
    image = randn(2, 3, 4, 5)
    volume = randn(1, 2, 4, 4, 6)
    row = randn(2, 3, 4)
    wanted_image = image.clone()
    expected = Many()(wanted_image, volume, row)
    lowered = lower(Many().eval(), (image, volume, row), backends=backends)
    given = channels_last(image)
    pooled, total, turned = lowered(
        given, volume.permute(0, 2, 3, 4, 1).contiguous(), row
    )
    torch.testing.assert_close(pooled, expected[0].permute(0, 2, 3, 4, 1))
    torch.testing.assert_close(total, expected[1])
    torch.testing.assert_close(turned, channels_last(expected[2]))
    torch.testing.assert_close(given, channels_last(wanted_image))


TWO_IMAGES = (randn(2, 3, 4, 5), randn(2, 3, 4, 5, seed=1))


def three_results():
    return Function(lambda x, y: (torch.relu(x), x + y, x.sum(1))).eval()


def test_only_named_inputs_and_outputs_change():
    module = three_results()
    x, y = TWO_IMAGES
    some = partial(channels_last_borders, inputs=["args_1"], outputs=[2, 0])

    relu, total, sums = lower(module, TWO_IMAGES, some)(x, channels_last(y))

    expected_relu, expected_total, expected_sums = module(x, y)
    torch.testing.assert_close(relu, channels_last(expected_relu))
    torch.testing.assert_close(total, expected_total)
    torch.testing.assert_close(sums, expected_sums.permute(0, 2, 1))


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (
            {"inputs": ["z"]},
            r"input 'z' is none of the program's inputs: \['args_0', 'args_1'\]",
        ),
        ({"outputs": [3]}, "output 3 is none of the program's outputs"),
        ({"outputs": 0}, r"outputs must be a list, such as \[0\]"),
    ],
    ids=["unknown input", "unknown output", "no list"],
)
def test_wrong_names_are_refused(names, text):
    with pytest.raises(InputError, match=text):
        lower(three_results(), TWO_IMAGES, partial(channels_last_borders, **names))


def test_named_outputs_of_low_rank_are_refused():
    transform = partial(channels_last_borders, outputs=[0])

    with pytest.raises(InputError, match="output 0 has rank 2; only rank 3 and above"):
        lower(nn.ReLU().eval(), randn(2, 3), transform)


def test_programs_without_images_are_refused():
    with pytest.raises(Unsupported, match="no tensor of rank 4 or 5"):
        lower(nn.ReLU().eval(), randn(2, 3))


def test_images_of_dynamic_size_need_no_transposition():
    options = {"tosa": {"spec": "TOSA-1.1+FP+shape"}}
    shapes = ({0: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO},)
    module = network()
    image = randn(2, 3, 6, 5)
    lowered = lower(
        module, (image,), dynamic_shapes=shapes, options=options, require_full=True
    )
    assert not count_operators(lowered)["TRANSPOSE"]
    longer = randn(3, 3, 6, 9)
    torch.testing.assert_close(
        lowered(channels_last(longer)), channels_last(module(longer)), rtol=0, atol=1e-6
    )


def test_empty_batches_keep_their_size():
    empty = torch.empty(0, 3, 4, 5)

    result = lower(nn.ReLU().eval(), empty)(channels_last(empty))

    assert result.shape == (0, 4, 5, 3)
