"""VGF files as Arm's own library reads them, and as our reader does."""

import struct

import delegraph
import delegraph_tosa
import pytest
import torch
import vgfpy
from delegraph.errors import FormatError
from delegraph_engines import unseal
from delegraph_vgf.content import MARK, content_of

INPUT = vgfpy.ResourceCategory.Input
OUTPUT = vgfpy.ResourceCategory.Output
FORMATS = {
    "fp32": 100,
    "fp16": 76,
    "int8": 14,
    "int16": 75,
    "int32": 99,
    "bool": 1000460000,
}
"""Name of a type of TOSA -> VkFormat."""


class Network(torch.nn.Module):
    """Results of several types, constants with NaN and infinity, inputs whose order is
    not that of their use.
    """

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.linear = torch.nn.Linear(4, 5)
        self.register_buffer(
            "odd", torch.tensor([float("nan"), float("inf"), -0.0, 1e-45, 1.0])
        )

    def forward(self, scale, x):
        y = torch.relu(self.conv(x)).amax((2, 3))
        z = torch.softmax(self.linear(y), 1) * scale
        return (
            z,
            y > 0.5,
            y.argmax(1).to(torch.int32),
            y.half(),
            torch.maximum(z, self.odd),
        )


MODEL = Network().eval()
INPUTS = (torch.tensor(2.0), torch.randn(2, 3, 8, 8))


@pytest.fixture(scope="module")
def lowered():
    return delegraph.lower(MODEL, INPUTS, backends=["vgf"], require_full=True)


@pytest.fixture(scope="module")
def graph():
    """What TOSA makes of the same program."""
    lowered = delegraph.lower(MODEL, INPUTS, backends=["tosa"], require_full=True)
    return delegraph_tosa.read(lowered.delegates[0].processed_bytes)


class Arms:
    """A file as vgfpy reads it."""

    def __init__(self, data):
        header = vgfpy.CreateHeaderDecoder(data, vgfpy.HeaderSize(), len(data))
        assert header.IsValid()
        assert header.CheckVersion()
        assert header.IsLatestVersion()

        def section(of, create):
            start, size = (
                getattr(header, f"Get{of}{what}")() for what in ("Offset", "Size")
            )
            return create(data[start : start + size], size)

        self.modules = section("ModuleTable", vgfpy.CreateModuleTableDecoder)
        self.sequence = section(
            "ModelSequenceTable", vgfpy.CreateModelSequenceTableDecoder
        )
        self.resources = section(
            "ModelResourceTable", vgfpy.CreateModelResourceTableDecoder
        )
        self.constants = section("Constants", vgfpy.CreateConstantDecoder)

    def borders(self, side):
        """(name, slot, category, format, shape) of each input or output."""
        names = getattr(self.sequence, f"getModelSequence{side}NamesHandle")()
        slots = getattr(self.sequence, f"getModelSequence{side}BindingSlotsHandle")()
        rows = []
        for k in range(self.sequence.getBindingsSize(slots)):
            at = self.sequence.getBindingSlotMrtIndex(slots, k)
            slot = self.sequence.getBindingSlotBinding(slots, k)
            name = self.sequence.getName(names, k)
            rows.append((name, slot, self.resources.getCategory(at), *self.type(at)))
        return rows

    def type(self, at):
        return self.resources.getVkFormat(at), tuple(
            self.resources.getTensorShape(at) or ()
        )

    def stored(self):
        """(format, shape, bytes) of each constant."""
        numbers = range(self.constants.size())
        return [
            (
                *self.type(self.constants.getConstantMrtIndex(k)),
                bytes(self.constants.getConstant(k)),
            )
            for k in numbers
        ]


@pytest.fixture(scope="module")
def data(lowered):
    return bytes(unseal(lowered.delegates[0].processed_bytes, MARK)[0])


def declared_types(values):
    return [(FORMATS[str(value.dtype)], tuple(value.shape)) for value in values]


def test_arms_library_finds_the_inputs_and_outputs_that_we_lowered(data, graph):
    file = Arms(data)
    inputs = file.borders("Input")
    outputs = file.borders("Output")
    assert [row[3:] for row in inputs] == declared_types(graph.inputs)
    assert [row[3:] for row in outputs] == declared_types(graph.outputs)
    assert {row[2] for row in inputs} == {INPUT}
    assert {row[2] for row in outputs} == {OUTPUT}
    assert len({row[1] for row in (*inputs, *outputs)}) == 7  # a slot each


def test_arms_library_reads_one_module_and_segment(data):
    file = Arms(data)
    assert file.modules.size() == 1
    assert file.sequence.modelSequenceTableSize() == 1
    assert file.modules.getModuleType(0) == vgfpy.ModuleType.Graph
    assert file.modules.hasSPIRVCode(0)
    assert file.sequence.getSegmentModuleIndex(0) == 0
    assert file.modules.getSPIRVModuleCode(0)[0] == 0x07230203  # SPIR-V's magic number


def test_constants_have_the_bits_of_the_weights(data):
    """Vectors of a few elements are not among them: they are part of the SPIR-V."""
    conv = MODEL.conv.weight.detach().permute(0, 2, 3, 1)
    linear = MODEL.linear.weight.detach()
    assert Arms(data).stored() == [
        (100, (4, 3, 3, 3), conv.numpy().tobytes()),
        (100, (5, 1, 1, 4), linear.numpy().tobytes()),
    ]


def test_our_reader_finds_the_same(data):
    ours = content_of(data)
    arms = Arms(data)
    for side, tensors in (("Input", ours.inputs), ("Output", ours.outputs)):
        assert [(t.name, t.slot, t.format, t.shape) for t in tensors] == [
            (name, slot, *type) for name, slot, _, *type in arms.borders(side)
        ]
    extents = [(constant.start, constant.bytes) for constant in ours.constants]
    assert [(constant.format, constant.shape) for constant in ours.constants] == [
        row[:2] for row in arms.stored()
    ]
    assert [bytes(data[start : start + size]) for start, size in extents] == [
        row[2] for row in arms.stored()
    ]


def test_a_quantized_network_is_a_file_of_int8():
    """Its weights are int8, and what crosses the border is what the program takes and
    returns.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(288, 5),
    )
    batches = [(torch.randn(1, 3, 8, 8),) for _ in range(3)]
    program = delegraph.quantize(model.eval(), batches, backend="tosa")
    ours, tosa = (
        delegraph.lower(program, backends=[name], require_full=True)
        for name in ("vgf", "tosa")
    )
    file = Arms(bytes(unseal(ours.delegates[0].processed_bytes, MARK)[0]))
    graph = delegraph_tosa.read(tosa.delegates[0].processed_bytes)
    assert [row[3:] for row in file.borders("Input")] == declared_types(graph.inputs)
    assert [row[3:] for row in file.borders("Output")] == declared_types(graph.outputs)
    stored = {
        shape: len(data)
        for form, shape, data in file.stored()
        if form == FORMATS["int8"]
    }
    assert stored == {(8, 3, 3, 3): 216, (5, 1, 1, 288): 1440}


def test_trailing_data_is_skipped(lowered, data):
    assert content_of(lowered.delegates[0].processed_bytes) == content_of(data)


def test_damaged_files_raise_only_format_errors(data):
    """Of the whole header, and of every 23rd byte behind it; lengths likewise."""
    for place in (*range(128), *range(128, len(data), 23)):
        for value in (0, 0x7F, 0xFF):
            damaged = bytearray(data)
            damaged[place] = value
            try:
                content_of(damaged)
            except FormatError as error:
                assert str(error)
    for length in range(0, len(data) - 1, 23):
        with pytest.raises(FormatError):
            content_of(data[:length])


@pytest.mark.parametrize(
    "place, form, value",
    [
        (8, "<B", 1),
        (9, "<B", 6),
        (16, "<Q", 2**63),
        (24, "<Q", 2**64 - 1),
        (64, "<Q", 0),
        (72, "<Q", 2**40),
    ],
)
def test_a_header_that_leads_astray_is_refused(data, place, form, value):
    damaged = bytearray(data)
    struct.pack_into(form, damaged, place, value)
    with pytest.raises(FormatError):
        content_of(damaged)


def test_a_count_of_constants_beyond_the_file_is_refused(data):
    start = struct.unpack_from("<Q", data, 64)[0]
    for count in (2**20, 2**60, 2**64 - 1):
        damaged = bytearray(data)
        struct.pack_into("<Q", damaged, start + 8, count)
        with pytest.raises(FormatError, match="constants"):
            content_of(damaged)
