"""All views and all in-place writes, whose combinations are tested."""

import torch

COMPLEX = {"view_as_real", "real", "imag", "conj"}
"""Views of complex tensors."""

RETRACED = {"real", "imag", "conj"}
"""Views that the local walk leaves to torch."""

BY_ELEMENTS = {
    *(
        "H",
        "adjoint",
        "expand",
        "expand_as",
        "broadcast_to",
        "unfold",
        "unfold with gaps",
        "as_strided",
    ),
    *("hsplit", "vsplit", "dsplit", "atleast_3d"),
}
"""Views without an inverse operator: what they show is written element by element."""

VIEWS = {
    "itself": lambda t: t,
    "view": lambda t: t.view(2, 6),
    "view_as": lambda t: t.view_as(torch.zeros(6, 2)),
    "reshape": lambda t: t.reshape(-1),
    "reshape_as": lambda t: t.reshape_as(torch.zeros(2, 2, 3)),
    "reshape that copies": lambda t: t.t().reshape(-1),
    "flatten": lambda t: t.flatten(),
    "unflatten": lambda t: t.unflatten(1, (2, 2)),
    "ravel": lambda t: t.ravel(),
    "contiguous": lambda t: t.contiguous(),
    "contiguous that copies": lambda t: t.t().contiguous(),
    "detach": lambda t: t.detach(),
    "alias": lambda t: torch.ops.aten.alias.default(t),
    "to": lambda t: t.to(torch.float32),
    "to that copies": lambda t: t.to(torch.float64),
    "type_as": lambda t: t.type_as(torch.zeros(1)),
    "positive": lambda t: torch.positive(t),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "squeeze": lambda t: t[:1].squeeze(),
    "squeeze dim": lambda t: t[:1].squeeze(0),
    "squeeze dims": lambda t: t[:1, :1].squeeze((0, 1)),
    "select": lambda t: t.select(1, -2),
    "slice": lambda t: t[1:],
    "slice with a step": lambda t: t[::2, 1::2],
    "slice of nothing": lambda t: t[3:],
    "narrow": lambda t: t.narrow(1, -3, 2),
    "diagonal": lambda t: t.diagonal(),
    "diagonal with an offset": lambda t: torch.diagonal(t, -1, 1, 0),
    "transpose": lambda t: t.transpose(0, 1),
    "permute": lambda t: t.unsqueeze(0).permute(2, 0, 1),
    "t": lambda t: t.t(),
    "T": lambda t: t.T,
    "mT": lambda t: t.mT,
    "H": lambda t: t.H,
    "adjoint": lambda t: t.adjoint(),
    "movedim": lambda t: t.movedim(0, 1),
    "moveaxis": lambda t: t.moveaxis((0, 1), (1, 0)),
    "swapaxes": lambda t: t.swapaxes(0, 1),
    "swapdims": lambda t: t.swapdims(0, 1),
    "expand in size": lambda t: t.expand(3, 4),
    "expand": lambda t: t[:, :1].expand(3, 4)[:, 2],
    "expand_as": lambda t: t[:1].expand_as(t)[1],
    "broadcast_to": lambda t: torch.broadcast_to(t[:, 0], (2, 3))[1],
    "unfold": lambda t: t.unfold(1, 2, 2),
    "unfold with gaps": lambda t: t.unfold(0, 1, 2),
    "as_strided": lambda t: t.as_strided((2, 3), (5, 1), 1),
    "chunk": lambda t: t.chunk(2, 1)[1],
    "split": lambda t: t.split(2)[0],
    "split sizes": lambda t: t.split([1, 2, 1], 1)[1],
    "split_with_sizes": lambda t: torch.split_with_sizes(t, [1, 2])[1],
    "tensor_split": lambda t: t.tensor_split(3, 1)[0],
    "tensor_split indices": lambda t: t.tensor_split((1, 3), 1)[1],
    "hsplit": lambda t: t.hsplit(2)[1],
    "vsplit": lambda t: t.vsplit(3)[1],
    "dsplit": lambda t: t.unflatten(1, (2, 2)).dsplit(2)[1],
    "unbind": lambda t: t.unbind(1)[2],
    "atleast_3d": lambda t: torch.atleast_3d(t),
    "view as ints and back": lambda t: t.view(torch.int32).view(torch.float32)[1],
    "view_as_complex": lambda t: torch.view_as_real(
        torch.view_as_complex(t.view(3, 2, 2))
    )[1],
    "view_as_real": lambda t: torch.view_as_real(t)[..., 1],
    "real": lambda t: t.real,
    "imag": lambda t: t.imag[1],
    "conj": lambda t: t.conj()[0],
    "numpy indexing": lambda t: t[1, None, ..., 1:3],
    "index that copies": lambda t: t[[0, 2]],
    "view of a view of a view": lambda t: (
        t.t()[1:3].unsqueeze(0).narrow(2, 1, 2).flatten(1)[0]
    ),
}

WRITES = {
    "add_": lambda t: t.add_(1),
    "add_ of a tensor": lambda t: t.add_(torch.full(t.shape, 0.5)),
    "mul_": lambda t: t.mul_(-2),
    "div_": lambda t: t.div_(4, rounding_mode=None),
    "sub_ with alpha": lambda t: t.sub_(torch.ones(()), alpha=3),
    "pow_": lambda t: t.pow_(2),
    "neg_": lambda t: t.neg_(),
    "sin_": lambda t: t.sin_(),
    "fill_": lambda t: t.fill_(0.25),
    "fill_ by a tensor": lambda t: t.fill_(torch.tensor(3.0)),
    "zero_": lambda t: t.zero_(),
    "copy_": lambda t: t.copy_(torch.full(t.shape, 2.0)),
    "copy_ broadcast": lambda t: t.copy_(torch.full((1,), 7.0)),
    "copy_ of ints": lambda t: t.copy_(torch.full(t.shape, 3)),
    "itself doubled": lambda t: t.copy_(t * 2),
    "set all": lambda t: t.__setitem__(..., 5.0),
    "set by a mask": lambda t: t.__setitem__(t.abs() > 1, 9.0),
    "masked_fill_": lambda t: t.masked_fill_(t.abs() > 1, -1.0),
    "add out": lambda t: torch.add(t, 1, out=t),
    "mul out": lambda t: torch.mul(t, torch.full((), 3.0), out=t),
    "sin out": lambda t: torch.sin(torch.full(t.shape, 0.5), out=t),
    "eq_": lambda t: t.eq_(1),
}
REAL_WRITES = {
    "clamp_": lambda t: t.clamp_(-1, 1),
    "relu_": lambda t: t.relu_(),
    "floor_": lambda t: t.floor_(),
    "lt_": lambda t: t.lt_(1.5),
    "hardtanh_": lambda t: torch.nn.functional.hardtanh_(t),
    "leaky_relu_": lambda t: torch.nn.functional.leaky_relu_(t),
    "remainder_": lambda t: t.remainder_(2),
    "cumsum_": lambda t: t.unsqueeze(0).cumsum_(0),
    "addcmul_": lambda t: t.addcmul_(torch.ones(()), torch.full((), 2.0), value=0.5),
    "lerp_": lambda t: t.lerp_(torch.ones(t.shape), 0.25),
    "maximum out": lambda t: torch.maximum(t, torch.ones(()), out=t),
    "sum out": lambda t: torch.sum(torch.stack([t, t]), 0, out=t),
    "clamp out": lambda t: torch.clamp(t, max=1, out=t),
}
"""Not for complex tensors."""
