"""Lowering rules for Fourier transforms and complex numbers give the results of eager
torch.
"""

from __future__ import annotations

import delegraph
import pytest
import torch

from ...support.rule_cases import Family, Function, randn

aten = torch.ops.aten
fft = torch.fft

FAMILY = Family()
signal = randn(2, 12)
image = randn(2, 5, 6)
window = torch.hann_window(8)


def real(x):
    """Exported programs have ``view_as_real`` where the core decomposed ``real``; these
    rows are not decomposed.
    """
    return torch.view_as_real(x)[..., 0]


def half_spectrum(x, dims=(-1,), normalization=0, onesided=True):
    """torch's own kernel takes no axes that count from the end."""
    return aten._fft_r2c(x, [d % x.dim() for d in dims], normalization, onesided)


for normalization in (0, 1, 2):
    FAMILY.cases(
        f"real-{normalization}",
        lambda x, n=normalization: torch.view_as_real(half_spectrum(x, (-1,), n)),
        signal,
        image,
    )
FAMILY.cases(
    "real-whole",
    lambda x: torch.view_as_real(half_spectrum(x, onesided=False)),
    signal,
    signal[:, :1],
    image,
)
FAMILY.case(
    "real-other-axis", lambda x: torch.view_as_real(half_spectrum(x, (0,))), signal
)
FAMILY.case(
    "real-two-axes", lambda x: torch.view_as_real(half_spectrum(x, (1, 2))), image
)
for name, function, over_two in (
    ("fft", fft.fft, fft.fft2),
    ("ifft", fft.ifft, fft.ifft2),
):
    for norm in (None, "ortho", "forward"):
        FAMILY.case(
            f"{name}-{norm}",
            lambda x, f=function, n=norm: real(f(f(x, norm=n), dim=0, norm=n)),
            signal,
        )
    FAMILY.case(f"{name}2", lambda x, f=over_two: torch.view_as_real(f(x)), image)
    FAMILY.case(
        f"{name}2-of-complex", lambda x, f=over_two: real(f(half_spectrum(x))), image
    )
for norm in (None, "ortho", "forward"):
    FAMILY.case(
        f"rfft-{norm}", lambda x, n=norm: fft.rfft(x, dim=1, norm=n).abs(), image
    )
for n in (None, 12, 13):
    FAMILY.case(
        f"back-{n}",
        lambda x, n=n: fft.irfft(half_spectrum(x), n=n, norm="ortho"),
        signal,
    )
FAMILY.case(
    "back-inner", lambda x: aten._fft_c2r(half_spectrum(x, (1, 2)), [1, 2], 2, 6), image
)
FAMILY.case(
    "inner", lambda x: real(aten._fft_c2c(half_spectrum(x), [0, 1], 1, False)), image
)
FAMILY.cases("abs", lambda x: half_spectrum(x).abs(), signal, image, torch.zeros(1, 4))
FAMILY.case("angle", lambda x: half_spectrum(x).angle(), signal)
FAMILY.case(
    "moved",
    lambda x: half_spectrum(x).permute(2, 0, 1).transpose(0, -1)[:, 1:].abs(),
    image,
)
FAMILY.case(
    "times",
    lambda x: (
        real(half_spectrum(x) * half_spectrum(x) * 2 * x[..., :1])
        - real(x[..., :1] * half_spectrum(x))
    ),
    image,
)
FAMILY.case("from-parts", lambda x: torch.view_as_complex(x).abs(), randn(3, 4, 2))

REFUSED = {
    "a complex result": (
        lambda x: half_spectrum(x),
        "aten._fft_r2c.default",
        "result leaves the delegate: TOSA has no torch.complex64",
    ),
    "no rule": (
        lambda x: half_spectrum(x).exp().abs(),
        "aten.exp.default",
        "its operand: TOSA has no torch.complex64",
    ),
    "too large": (
        lambda x: half_spectrum(x.repeat(1, 200)).abs(),
        "aten._fft_r2c.default",
        "2400 numbers is too large for a matrix",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_transforms_are_refused_and_run_on_the_host(name):
    function, operator, reason = REFUSED[name]
    module = Function(function).eval()

    lowered = delegraph.lower(module, (signal,), backends=["tosa"])

    reasons = {row.operator: row.reason for row in lowered.report.refusals}
    assert reason in reasons[operator]
    torch.testing.assert_close(lowered(signal), module(signal))


def test_stft_and_its_inverse_lower_completely():
    """Audio models use both around their network."""
    options = {"n_fft": 8, "hop_length": 4, "window": window}

    def forward(x):
        spectrum = torch.stft(x, return_complex=True, **options)
        return spectrum.abs().pow(2), torch.istft(spectrum, **options)

    x = randn(2, 40)

    lowered = delegraph.lower(
        Function(forward).eval(), (x,), backends=["tosa"], require_full=True
    )

    assert lowered.verify(x).relative_error < 1e-5


test_rows_call_every_rule = FAMILY.covers("fourier")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)
