"""Complex numbers in ``.pte`` files of the host equal eager in both runtimes."""

import delegraph
import pytest
import torch

from plugins.executorch_backend.tests.support.both_runtimes import save_and_expect_right

SIGNAL = torch.randn(32, generator=torch.Generator().manual_seed(0))
ROWS = SIGNAL.reshape(4, 8)
PAIRS = SIGNAL.reshape(16, 2)
WINDOW = torch.hann_window(8)


def stft(x):
    return torch.stft(x, 8, 4, window=WINDOW, return_complex=True)


def on_spectrum(function):
    """Return a model that applies a function to a spectrum [4, 5] and returns real
    numbers.
    """

    def call(x):
        result = function(torch.fft.rfft(x))
        return (
            torch.view_as_real(result.resolve_conj()) if result.is_complex() else result
        )

    return call


PROGRAMS = {
    "stft": (lambda x: torch.view_as_real(stft(x)), SIGNAL),
    "stft, magnitude": (lambda x: stft(x).abs(), SIGNAL),
    "stft, power in decibels": (
        lambda x: (stft(x).abs() ** 2).clamp(min=1e-6).log10(),
        SIGNAL,
    ),
    "istft": (lambda x: torch.istft(stft(x), 8, 4, window=WINDOW), SIGNAL),
    "istft of a masked spectrum": (
        lambda x: torch.istft(stft(x) * (stft(x).abs() > 0.5), 8, 4, window=WINDOW),
        SIGNAL,
    ),
    "rfft, real part": (lambda x: torch.fft.rfft(x).real, ROWS),
    "rfft, imaginary part": (lambda x: torch.fft.rfft(x, norm="ortho").imag, ROWS),
    "rfft along another axis": (lambda x: torch.fft.rfft(x, dim=0).abs(), ROWS),
    "fft of real numbers": (lambda x: torch.view_as_real(torch.fft.fft(x)), ROWS),
    "fft of an odd number": (
        lambda x: torch.view_as_real(torch.fft.fft(x[:, :7])),
        ROWS,
    ),
    "fft of two": (lambda x: torch.view_as_real(torch.fft.fft(x)), PAIRS),
    "irfft": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2), ROWS),
    "view_as_complex, abs": (lambda x: torch.view_as_complex(x).abs(), PAIRS),
    "view_as_complex, angle": (lambda x: torch.view_as_complex(x).angle(), PAIRS),
    "complex": (lambda x: torch.view_as_real(torch.complex(x, x.flip(1))), ROWS),
    "complex with NaN": (
        lambda x: torch.view_as_real(torch.complex(x, x * torch.nan)),
        ROWS,
    ),
    "polar": (lambda x: torch.view_as_real(torch.polar(x, x)), ROWS),
    "rotary embedding": (
        lambda x: torch.view_as_real(
            torch.view_as_complex(x) * torch.polar(torch.ones(16), torch.arange(16.0))
        ),
        PAIRS,
    ),
    "a complex constant": (
        on_spectrum(lambda c: c * torch.tensor([1 + 2j, 3j, 4, 5, 6])),
        ROWS,
    ),
    "times a complex number": (on_spectrum(lambda c: c * (1 + 2j)), ROWS),
    "times real numbers": (on_spectrum(lambda c: c * c.real), ROWS),
    "times a row": (on_spectrum(lambda c: c * c[:1]), ROWS),
    "by a column": (on_spectrum(lambda c: c / c[:, :1]), ROWS),
    "plus a row": (on_spectrum(lambda c: c + c[0]), ROWS),
    "minus a number": (on_spectrum(lambda c: c - 1), ROWS),
    "minus twice": (on_spectrum(lambda c: torch.sub(c, c[0], alpha=2)), ROWS),
    "neg": (on_spectrum(lambda c: -c), ROWS),
    "conj": (on_spectrum(lambda c: c.conj() * c), ROWS),
    "square": (on_spectrum(lambda c: c**2), ROWS),
    "sum": (on_spectrum(lambda c: c.sum(1)), ROWS),
    "mean": (on_spectrum(lambda c: c.mean(1)), ROWS),
    "mean of all": (on_spectrum(lambda c: c.mean()), ROWS),
    "matmul": (on_spectrum(lambda c: c @ c.T), ROWS),
    "bmm": (on_spectrum(lambda c: c[None] @ c[None].mT), ROWS),
    "transpose": (on_spectrum(lambda c: c.T), ROWS),
    "cat": (on_spectrum(lambda c: torch.cat([c, c], 1)), ROWS),
    "stack": (on_spectrum(lambda c: torch.stack([c, c], 1)), ROWS),
    "slice": (on_spectrum(lambda c: c[:, 1:4:2]), ROWS),
    "select": (on_spectrum(lambda c: c[2]), ROWS),
    "split": (on_spectrum(lambda c: c.split([2, 3], 1)[1]), ROWS),
    "index": (on_spectrum(lambda c: c[:, torch.tensor([0, 2])]), ROWS),
    "index_select": (
        on_spectrum(lambda c: c.index_select(0, torch.tensor([1, 1]))),
        ROWS,
    ),
    "gather": (on_spectrum(lambda c: c.gather(0, torch.zeros(1, 5).long())), ROWS),
    "flip": (on_spectrum(lambda c: c.flip(0)), ROWS),
    "roll": (on_spectrum(lambda c: c.roll(1, 1)), ROWS),
    "repeat": (on_spectrum(lambda c: c.repeat(2, 1)), ROWS),
    "pad": (on_spectrum(lambda c: torch.nn.functional.pad(c, (1, 2), value=3.0)), ROWS),
    "where": (on_spectrum(lambda c: torch.where(c.real > 0, c, c * 2)), ROWS),
    "tril": (on_spectrum(lambda c: c.tril()), ROWS),
    "full_like": (on_spectrum(lambda c: c + torch.full_like(c, 2.0)), ROWS),
    "equal": (on_spectrum(lambda c: c == c.flip(0)), ROWS),
    "float64": (lambda x: torch.view_as_complex(x.double()).abs(), PAIRS),
    "complex at the borders": (lambda x: x * 2, torch.view_as_complex(PAIRS).clone()),
}
REFUSED = {
    "fft of complex numbers": (
        lambda x: torch.fft.ifft(torch.fft.rfft(x)).real,
        "no kernel that computes aten._fft_c2c",
    ),
    "exp": (on_spectrum(torch.exp), "does not support complex numbers"),
}


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("name", PROGRAMS)
def test_complex_numbers_in_a_pte_equal_eager(name, tmp_path):
    function, x = PROGRAMS[name]
    program = delegraph.lower(Model(function), (x,), backends=[])
    save_and_expect_right(
        program, function, (x,), folder=tmp_path, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", REFUSED)
def test_complex_numbers_without_kernels_are_refused_with_reason(name, tmp_path):
    function, reason = REFUSED[name]
    with pytest.raises(delegraph.errors.Unsupported, match=reason):
        delegraph.lower(Model(function), (ROWS,), backends=[]).save(tmp_path / "a.pte")


@pytest.mark.parametrize("backend", ["tosa", "openvino", "xnnpack"])
def test_abs_of_view_as_complex_is_right_on_each_backend(backend, tmp_path):
    model = Model(lambda x: torch.view_as_complex(x.reshape(-1, 2) * 2).abs())
    lowered = delegraph.lower(model, (ROWS,), backends=[backend])
    torch.testing.assert_close(lowered(ROWS), model(ROWS))
    if backend == "tosa":
        assert lowered.host_operators == 0
    lowered.save(tmp_path / "a.pte")
    torch.testing.assert_close(delegraph.load(tmp_path / "a.pte")(ROWS), model(ROWS))
