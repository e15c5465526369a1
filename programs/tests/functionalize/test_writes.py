"""In-place programs become functional, and equal eager.

The report notes if torch has to retrace the graph.
"""

import copy
from types import SimpleNamespace

import pytest
import torch
from delegraph_programs import all_nodes, normalize
from delegraph_programs.errors import InputError
from torch import nn

F = nn.functional


def as_module(function):
    class Module(nn.Module):
        def forward(self, *args):
            return function(*args)

    return Module().eval()


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(3))

    def forward(self, x):
        self.k.add_(1)
        return x + self.k


class SliceWrite(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(3, 4))

    def forward(self, x):
        self.k[1] = x
        return self.k * 2


class NoGrad(nn.Module):
    def forward(self, x):
        with torch.no_grad():
            y = torch.relu(x)
        return y + torch.tensor(3.0)


class Stored(nn.Module):
    """Returns the value that it stores. From torch 2.14 on, torch removes the copy and
    warns.
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3, 4))

    def forward(self, x):
        total = torch.vmap(lambda row: row + row.sum())(x)
        self.last.copy_(x)
        return total, self.last


class Replaced(nn.Module):
    """Replaces a buffer's tensor, which torch exports as a copy recorded as the new
    tensor.
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3, 4))

    def forward(self, x):
        self.last = torch.roll(self.last, 1, 0)
        self.last[0] = x[0]
        return self.last * x


class Statistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x):
        return F.batch_norm(x, self.bn.running_mean, self.bn.running_var, training=True)


def relu_of_view(x):
    y = x + 1
    y.view(-1).mul_(2)
    return y + 0


def write_after_read(x):
    y = x + 1
    z = y * 2
    y.add_(5)
    return y + z


def write_half(x):
    y = x + 1
    a, b = torch.chunk(y, 2)
    a.mul_(3)
    return y + torch.cat([b, a])


def dropout_alias(x):
    y = x + 1
    z = F.dropout(y, 0.5, False)
    z.mul_(2)
    return y + 0


def input_write(x):
    x.mul_(2)
    return x + 1


def nested_views(x):
    y = x + 1
    y.t()[1:3].unsqueeze(0).narrow(2, -2, 1).flatten().mul_(5)
    torch.diagonal(y, 1).zero_()
    y.movedim(0, 1).unbind(1)[0][1].fill_(4)
    return y + 0


def view_is_read_later(x):
    y = x + 1
    row = y[1]
    column = y.select(1, 2)
    both = row.view(2, 2)
    y.mul_(3)
    column.add_(1)
    return y, row, column * 1, both


def pieces(x):
    y = x + 1
    a, b, c = y.split([1, 2, 1], 1)
    b.mul_(2)
    first, second = y.tensor_split(2)
    first.copy_(torch.ones(2, 4))
    second[0] = 7
    return y + 0, a + c, b


def shape_in_place(x):
    y = x + 1
    z = y.view(-1)
    y.unsqueeze_(0)
    y[0, 1].mul_(2)
    y.transpose_(1, 2)
    y[0, 0] = 3
    return y * 1, z


def reshape_that_copies(x):
    y = x + 1
    copied = y.t().reshape(-1)
    shared = y.reshape(-1)
    y.mul_(2)
    copied.add_(1)
    shared.sub_(3)
    return y, copied, shared


def unpacked(x):
    values, indices = torch.topk(x * 1, 2)
    values.mul_(2)
    indices[0].zero_()
    return values, indices


def written_twice(x):
    y = x * 2
    z = y[0]
    z.add_(1)
    y.mul_(2)
    z.add_(1)
    return z + y


class Remembers(nn.Module):
    """A broadcast copy and an ``out=``. torch's retrace confuses the row with the
    buffer.
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(3, 4))

    def forward(self, x):
        torch.add(x, 1, out=x)
        self.h.copy_(x[1])
        return self.h


class Windows(nn.Module):
    def __init__(self, size, step):
        super().__init__()
        self.size = size
        self.step = step
        self.register_buffer("b", torch.ones(5))

    def forward(self, x):
        self.b.unfold(0, self.size, self.step).add_(1)
        return self.b * x.sum()


def memory_of_a_view(x):
    """``as_strided`` reads the memory of ``y``, which is a new tensor after the first
    write.
    """
    y = x + 1
    y.t().mul_(2)
    z = y[1:].as_strided((2, 3), (4, 1), 1)
    z.add_(1)
    return y, z


def copied_memory(x):
    """``as_strided_copy`` of a written view reads memory of the base tensor."""
    y = x + 1
    row = y[1].mul_(2)
    return torch.as_strided_copy(row, (2, 3), (4, 1), 1), torch.as_strided_copy(
        row, (2,), (1,)
    )


def scattered_memory(x):
    y = (x + 1).mul_(2)
    return torch.as_strided_scatter(y, x[0, :2], (2,), (5,), 1)


def through_expand(x):
    y = x[:, :1] + 1
    y.expand(3, 4)[0, 0].mul_(2)
    return y * 1


LOCAL = {
    "relu_": as_module(lambda x: torch.relu_(x + 1)),
    "residual": as_module(lambda x: (x * 2).add_(x)),
    "chain": as_module(lambda x: F.hardtanh_(torch.relu_(x * 3), 0, 1).mul_(2)),
    "write_after_read": as_module(write_after_read),
    "counter": Counter(),
    "no_grad": NoGrad(),
    "input_write": as_module(input_write),
    "masked_fill": as_module(lambda x: (x + 0).masked_fill_(x > 0, 7.0)),
    "copy_of_one": as_module(lambda x: (x + 1).copy_(x.sum())[:, 1:] * 2),
    "copy": as_module(lambda x: torch.zeros(3, 4).copy_(x)),
    "dropout_alias": as_module(dropout_alias),
    "returns_input": as_module(lambda x: (x, x + 1)),
    "write_through_view": as_module(relu_of_view),
    "write_half": as_module(write_half),
    "slice_write": SliceWrite(),
    "statistics": Statistics(),
    "in_place_comparison": as_module(lambda x: (x + 0).ge_(0.5)),
    "nested_views": as_module(nested_views),
    "view_is_read_later": as_module(view_is_read_later),
    "pieces": as_module(pieces),
    "unsqueeze_": as_module(shape_in_place),
    "reshape_that_copies": as_module(reshape_that_copies),
    "unpacked": as_module(unpacked),
    "written_twice": as_module(written_twice),
    "dropout_": as_module(lambda x: F.dropout(x + 1, 0.5, False, inplace=True) * 2),
    "replaced_buffer": Replaced(),
    "through_expand": as_module(through_expand),
    "out_argument": as_module(lambda x: torch.add(x, 1, out=torch.zeros(3, 4))),
    "out_argument_of_another_type": as_module(
        lambda x: torch.add(x, 1, out=torch.zeros(3, 4, dtype=torch.float64))
    ),
    "copy_of_a_row": Remembers(),
    "windows": Windows(2, 2),
    "memory_of_a_view": as_module(memory_of_a_view),
    "copied_memory": as_module(copied_memory),
    "scattered_memory": as_module(scattered_memory),
}


def memory_of_another(x):
    """``set_``, whose schema does not show that both tensors then share memory."""
    y = torch.zeros(3, 4)
    given = x * 2
    y.set_(given)
    given.add_(1)
    return y + 0


RETRACED = {
    "set_": as_module(memory_of_another),
    "vmap": as_module(lambda x: torch.vmap(lambda row: row * row.sum())(x)),
    "stored_and_returned": Stored(),
}


def normalize_and_compare(module, *inputs, times=2):
    """Compare the normalized program with eager over several calls, and return its
    notes.
    """
    program = torch.export.export(module, copy.deepcopy(inputs))
    before = str(program.graph)
    normal, notes = normalize(program)
    assert str(program.graph) == before, "the caller's program was changed"
    ours = normal.module(check_guards=False)
    theirs = copy.deepcopy(module)
    for _ in range(times):
        mine = copy.deepcopy(inputs)
        eager = copy.deepcopy(inputs)
        torch.testing.assert_close(
            ours(*mine), theirs(*eager), rtol=0, atol=0, equal_nan=True
        )
        torch.testing.assert_close(mine, eager, rtol=0, atol=0)
    return normal, notes


SHAPES = {
    "statistics": (2, 4),
    "slice_write": (4,),
    "counter": (3,),
    "write_half": (4, 4),
}


@pytest.mark.parametrize("name", LOCAL)
def test_writes_to_local_tensors_become_functional(name):
    normal, notes = normalize_and_compare(
        LOCAL[name], torch.randn(SHAPES.get(name, (3, 4)))
    )

    assert notes == []
    assert not [
        node
        for node in normal.graph.nodes
        if getattr(node.target, "_schema", None) and node.target._schema.is_mutable
    ]


IN_THE_MIDDLE = {
    "shown": lambda x: (x.mul_(2), x.as_strided((2, 3), (4, 1), 9)),
    "shown before": lambda x: (x[1].as_strided((3,), (2,), 9), x.mul_(2)),
    "copied": lambda x: (x.mul_(2), torch.as_strided_copy(x[1], (2,), (3,), 8)),
    "at its own offset": lambda x: (x.mul_(2), torch.as_strided_copy(x[1], (4,), (1,))),
}


@pytest.mark.parametrize("name", IN_THE_MIDDLE)
def test_places_are_counted_from_the_start_of_memory(name):
    """A new value starts its own memory, even if the written input is a view with an
    offset.
    """
    _, notes = normalize_and_compare(
        as_module(IN_THE_MIDDLE[name]), view_in_the_middle()
    )
    assert notes == []


def view_in_the_middle():
    return torch.arange(20.0)[8:].reshape(3, 4)


def view_with_gaps():
    return torch.arange(36.0).as_strided((4, 6), (9, 1), 1)


def written_beside(x):
    x.as_strided((), (), 0).mul_(-2)
    return x + 1


def read_beside(x):
    x.as_strided((), ()).sin_()
    return x.as_strided((3, 2, 4), (6, 4, 4), 1) + 0


def read_in_other_units(x):
    y = x + 1
    bits = y.view(torch.int16)
    y.mul_(2)
    return y, bits.as_strided((2,), (3,), 1)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (written_beside, view_with_gaps()),
        (read_beside, view_with_gaps()),
        (lambda x: (x.mul_(2), x.as_strided((2,), (1,), 3))[1], view_in_the_middle()),
        (lambda x: x.as_strided((2,), (1,), 3).mul_(2) + x[0, 0], view_in_the_middle()),
        (
            lambda x: (x.as_strided((2,), (1,), 18).mul_(2), x + 0)[1],
            torch.arange(20.0)[:12].reshape(3, 4),
        ),
        (
            lambda x: (x.mul_(2), torch.as_strided_scatter(x[1], x[0, :2], (2,), (1,)))[
                1
            ],
            view_in_the_middle(),
        ),
    ],
    ids=[
        "written beside",
        "read beside",
        "read before",
        "written before",
        "written behind",
        "scattered",
    ],
)
def test_reading_memory_around_a_written_tensor_is_refused_or_correct(function, x):
    """A new value has no memory around it. torch's kernels decide whether the result is
    correct.
    """
    try:
        normalize_and_compare(as_module(function), x)
    except InputError as e:
        assert "cannot be made functional" in e.message
        assert "test_writes.py" in str(e.source)


def test_writes_through_views_of_other_dtypes_equal_eager():
    normalize_and_compare(as_module(read_in_other_units), torch.randn(3, 4))


@pytest.mark.parametrize("name", RETRACED)
def test_retraced_programs_equal_eager_and_are_noted(name):
    _, notes = normalize_and_compare(
        RETRACED[name], torch.randn(SHAPES.get(name, (3, 4)))
    )
    assert notes
    assert all(n.startswith("retraced, because of ") for n in notes)


class Region(nn.Module):
    """Has to be retraced: the casts of autocast appear only then."""

    def __init__(self, step):
        super().__init__()
        self.step = step
        self.linear = nn.Linear(4, 4)
        self.register_buffer("h", torch.ones(3, 4))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(x).float()
        return self.step(self.h, y)


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (
            lambda h, y: h.copy_(y[0]),
            "the new value of h is torch.float32 of shape [4] instead of",
        ),
        (lambda h, y: (h.unfold(0, 2, 2).add_(1), h * y)[1], "result 0 of call 1"),
        (
            lambda h, y: (h.unfold(1, 3, 3).add_(1), y)[1],
            "the contents of inputs and buffers after two calls",
        ),
    ],
    ids=["types", "results", "state"],
)
@pytest.mark.parametrize(
    "known", [True, False], ids=["example inputs", "made-up inputs"]
)
def test_programs_that_torch_functionalizes_wrongly_are_refused(step, says, known):
    """torch is wrong for broadcast copies, and for windows that skip elements."""
    module = Region(step).eval()
    x = torch.randn(3, 4)
    program = torch.export.export(module, (x,))
    if not known:
        program._example_inputs = None

    with pytest.raises(
        InputError,
        match="wrap_with_autocast.*torch's functional form differs from eager",
    ) as e:
        normalize(program)
    assert says in str(e.value)
    assert "test_writes.py" in str(e.value.source)


@pytest.mark.parametrize(
    "known", [True, False], ids=["example inputs", "made-up inputs"]
)
def test_programs_with_random_numbers_are_accepted(known):
    """Both sides draw the same numbers. The user's tensors and generator do not change."""
    module = Region(
        lambda h, y: h.add_(torch.rand_like(h)) + F.dropout(y, 0.5, True)
    ).eval()
    x = torch.randn(3, 4)
    program = torch.export.export(module, (x,))
    if not known:
        program._example_inputs = None
    before = x.clone()
    state = torch.random.get_rng_state()
    _, notes = normalize(program)

    assert [n.partition(":")[0] for n in notes] == [
        "retraced, because of wrap_with_autocast"
    ]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(x, before), "the user's own"
    assert torch.equal(program.state_dict["h"], torch.ones(3, 4)), "the user's own"


def test_a_program_that_eager_cannot_run_is_not_compared():
    """Made-up indices may be out of range. The report notes the missing comparison."""
    module = Region(
        lambda h, y: y[torch.full((1,), 5) - y.new_ones(1, dtype=torch.int64) * 5]
    )
    program = torch.export.export(module.eval(), (torch.randn(3, 4),))
    with torch._subclasses.FakeTensorMode():
        program._example_inputs = ((torch.empty(3, 4),), {})
    _, notes = normalize(program)

    assert (
        notes[1]
        == "the retraced program was not compared with eager: its tensors have no values"
    )


@pytest.mark.parametrize(
    "literal",
    [lambda: torch.tensor(3.0), lambda: torch.tensor([1.0, 2.0]).view(2, 1).detach()],
)
def test_returned_literals_are_new_tensors_in_each_call(literal):
    normal, _ = normalize_and_compare(
        as_module(lambda x: (x + 1, literal())), torch.randn(3, 4)
    )
    call = normal.module(check_guards=False)
    call(torch.ones(3, 4))[1].zero_()
    torch.testing.assert_close(call(torch.ones(3, 4))[1], literal())


def test_created_tensors_have_the_exported_dtype():
    def create(x):
        made = (
            torch.full((3,), 2.5),
            torch.eye(3),
            torch.linspace(0, 1, 3),
            torch.randn(3),
            torch.arange(3.0),
        )
        return tuple(x + m for m in made), torch.arange(3) + torch.ones(3)

    program = torch.export.export(as_module(create), (torch.ones(3),))
    call = normalize(program)[0].module(check_guards=False)
    torch.set_default_dtype(torch.float64)
    try:
        results = torch.utils._pytree.tree_leaves(
            call(torch.ones(3, dtype=torch.float32))
        )
    finally:
        torch.set_default_dtype(torch.float32)

    assert {r.dtype for r in results} == {torch.float32}


def two_tensors_of_ones(n, *, dtype=None):
    return torch.ones(n), torch.ones(n)


def test_custom_operators_get_no_dtype_argument():
    """An operator may have several results with different dtypes."""
    with torch.library._scoped_library("writes_test", "FRAGMENT") as library:
        library.define("pair(int n, *, ScalarType? dtype=None) -> (Tensor, Tensor)")
        library.impl("pair", two_tensors_of_ones, "CompositeExplicitAutograd")
        torch.library.register_fake(
            "writes_test::pair", two_tensors_of_ones, lib=library
        )
        normal, _ = normalize(
            torch.export.export(
                as_module(lambda x: x + torch.ops.writes_test.pair(3)[1]),
                (torch.ones(3),),
            )
        )
        (call,) = (node for node in normal.graph.nodes if "pair" in str(node.target))
        assert not call.kwargs


class Cut(nn.Module):
    """Reads a data-dependent number of rows from the tensor that it wrote."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(8, 4))

    def forward(self, x, count):
        size = count.item()
        torch._check(size >= 1)
        torch._check(size <= 8)
        self.rows.copy_(self.rows + x)
        return self.rows[:size].sum(0), self.rows[8 - size :] * 2


def test_views_may_have_data_dependent_sizes():
    module = Cut().eval()
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(copy.deepcopy(module), (x, torch.tensor([3])))
    run = normalize(program)[0].module(check_guards=False)
    for size in (3, 8, 1):  # each call adds to what the last one left
        for actual, expected in zip(
            run(x, torch.tensor([size])), module(x, torch.tensor([size])), strict=True
        ):
            assert torch.equal(actual, expected)


def test_the_signature_lists_written_buffers():
    normal, _ = normalize_and_compare(Counter(), torch.randn(3))
    assert list(normal.graph_signature.buffers_to_mutate.values()) == ["k"]


def test_the_signature_lists_written_inputs():
    normal, _ = normalize_and_compare(LOCAL["input_write"], torch.randn(3, 4))
    assert list(normal.graph_signature.user_inputs_to_mutate.values()) == ["args_0"]


def test_handles_are_unique_and_in_order():
    normal, _ = normalize(torch.export.export(LOCAL["chain"], (torch.randn(3),)))
    handles = [
        node.meta["debug_handle"]
        for node in normal.graph.nodes
        if node.op == "call_function"
    ]
    assert handles == list(range(1, len(handles) + 1))


def test_normalizing_again_keeps_handles():
    normal, _ = normalize(torch.export.export(LOCAL["residual"], (torch.randn(3),)))
    again, _ = normalize(normal)
    assert [node.meta.get("debug_handle") for node in again.graph.nodes] == [
        node.meta.get("debug_handle") for node in normal.graph.nodes
    ]


def test_in_place_results_keep_the_dtype_of_the_written_tensor():
    """x.add_(y64) keeps float32. The functional add gives float64, so its result is
    cast.
    """
    module = as_module(lambda x, y: (x + 0).add_(y))
    normal, notes = normalize_and_compare(
        module, torch.randn(3), torch.randn(3, dtype=torch.float64)
    )
    assert notes == []
    assert [str(node.target) for node in normal.graph.nodes][-2] == "aten.to.dtype"


def test_symbolic_integers_and_floats_promote_differently():
    """A product of integers is cast to the floats of ``out``; a product of floats needs
    no cast.
    """

    def products(x):
        i = torch.arange(3)
        size = x.shape[0]
        of_floats = torch.mul(i, size * 0.5, out=torch.empty(3))
        return of_floats, torch.mul(i, size, out=torch.empty(3))

    shapes = (({0: torch.export.Dim("n", min=2)},),)
    normal, notes = normalize(
        torch.export.export(
            as_module(products), (torch.ones(4),), dynamic_shapes=shapes
        )
    )
    results = normal.module(check_guards=False)(torch.ones(5))

    assert notes == []
    assert [result.dtype for result in results] == [torch.float32, torch.float32]


@pytest.mark.parametrize(
    "name", ["write_through_view", "pieces", "reshape_that_copies", "written_twice"]
)
def test_loaded_programs_with_writes_become_functional(name, tmp_path):
    """A loaded program has no storages, so aliases come from schemas and fake tensors."""
    x = torch.randn(3, 4)
    torch.export.save(torch.export.export(LOCAL[name], (x,)), tmp_path / "p.pt2")
    normal, notes = normalize(torch.export.load(tmp_path / "p.pt2"))
    assert notes == []
    torch.testing.assert_close(
        normal.module(check_guards=False)(x), LOCAL[name](x), rtol=0, atol=0
    )


def test_added_calls_get_the_handle_of_their_call():
    normal, _ = normalize(
        torch.export.export(as_module(relu_of_view), (torch.randn(3, 4),))
    )
    handles = {
        str(node.target): node.meta.get("debug_handle") for node in normal.graph.nodes
    }
    assert handles["aten.reshape.default"] == handles["aten.mul.Tensor"]


class Attribute(nn.Module):
    """Keeps state in a tensor that is no buffer. A buffer may share its memory."""

    def __init__(self, shared=False):
        super().__init__()
        self.k = torch.zeros(3)
        self.register_buffer("seen", self.k if shared else torch.zeros(3))

    def forward(self, x):
        self.k.add_(x)
        return self.k * 2 + self.seen


@pytest.mark.parametrize("shared", [False, True])
def test_written_constants_are_kept_like_buffers(shared):
    x = torch.ones(3)
    expected = torch.export.export(Attribute(shared), (x,)).module()
    normal, notes = normalize(torch.export.export(Attribute(shared), (x,)))
    assert notes == []
    run = normal.module(check_guards=False)
    for _ in range(3):
        torch.testing.assert_close(run(x), expected(x), rtol=0, atol=0)


class Hidden(nn.Module):
    """Writes a buffer through an object that ``torch.export`` treats as another tensor."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.state = SimpleNamespace(k=self.seen[:2])

    def forward(self, x):
        self.state.k.add_(x[:2])
        return self.seen * 2


def test_writes_to_partly_shared_constants_are_refused():
    with pytest.raises(
        InputError,
        match="c_lifted_tensor_0 shares memory with b_seen in an unknown way",
    ):
        normalize(torch.export.export(Hidden(), (torch.ones(3),)))


def test_assembled_programs_equal_constructed_ones():
    """Programs are assembled without generating code, so their attributes are compared."""
    made, _ = normalize(torch.export.export(Counter(), (torch.randn(3),)))
    constructed = torch.export.ExportedProgram(
        made.graph_module,
        made.graph,
        made.graph_signature,
        made.state_dict,
        made.range_constraints,
        made.module_call_graph,
        constants=made.constants,
        verifiers=made.verifiers,
    )
    assert vars(made).keys() == vars(constructed).keys()

    for name, value in vars(constructed).items():
        assert type(vars(made)[name]) is type(value) or name == "_graph_module"
    copied = copy.deepcopy(made)
    torch.testing.assert_close(
        copied.module(check_guards=False)(torch.ones(3)), torch.full((3,), 2.0)
    )
    assert "add" in str(made)
    assert "add" in made.graph_module.code


def test_overlapping_buffers_that_are_written_are_refused():
    class Overlapping(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.zeros(2, 3))
            self.register_buffer("row", self.table[1])

        def forward(self, x):
            self.table.add_(x)
            return self.row * 2

    with pytest.raises(
        InputError,
        match="functional: aten.add_.Tensor: b_row shares memory with b_table",
    ):
        normalize(torch.export.export(Overlapping(), (torch.ones(3),)))


@pytest.mark.filterwarnings("ignore:erase_node:UserWarning")
@pytest.mark.parametrize("inside", [False, True], ids=["region", "region in a branch"])
def test_casts_of_autocast_are_written_out(inside):
    """Otherwise a backend would compile the region in other dtypes than eager."""

    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def region(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return torch.relu(self.linear(x)).float()

        def forward(self, x):
            return (
                torch.cond(x.sum() > 0, self.region, lambda x: x * 2, (x,))
                if inside
                else self.region(x) + 1
            )

    module = Cast().eval()
    x = torch.randn(2, 4).abs()
    normal, notes = normalize(torch.export.export(module, (x,)))
    assert notes
    assert "wrap_with_autocast: the graph does not show its casts" in notes[0]

    calls = {
        str(n.target) for n in all_nodes(normal.graph_module) if n.op == "call_function"
    }
    assert "aten._to_copy.default" in calls
    assert "wrap_with_autocast" not in calls
    torch.testing.assert_close(
        normal.module(check_guards=False)(x), module(x), rtol=0, atol=0
    )
