"""Every layer and option that `ghost` claims: the same norms and sums as the loop, on the fast path."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import Net, assert_agree, assert_same, parameter, run, slower
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from hush.gradients import Ghost, Loop, factors

N = 5
USERS = torch.tensor([0, 1, 0, 2, 1])


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(20)


def labels(n: int = N) -> Tensor:
    return torch.randint(0, 3, (n,))


def pooled(x: Tensor) -> Tensor:
    return x.flatten(2).mean(-1)


def fast(model: nn.Module, *inputs: Tensor, **options: Any) -> None:
    notes = assert_agree(model, (*inputs, labels()), **options)
    assert slower(notes) == []


def each_way(model: nn.Module, x: Tensor) -> None:
    """One unit an example, by user, in microbatches, layer by layer."""
    count = len([p for p in model.parameters() if p.requires_grad])
    groups = tuple((k,) for k in range(count))
    fast(model, x)
    fast(model, x, single=False, units=USERS)
    fast(model, x, single=False, microbatch=2)
    fast(model, x, single=False, units=USERS, microbatch=2, groups=groups)


class TestLinear:
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
    def test_with_any_leading_dimensions(self, lead: tuple[int, ...], bias: bool) -> None:
        model = Net(
            lambda s, x: s.o(torch.tanh(s.a(x)).flatten(1, -2).mean(1) if x.dim() > 2 else torch.tanh(s.a(x))),
            a=nn.Linear(4, 6, bias=bias),
            o=nn.Linear(6, 3, bias=bias),
        )
        each_way(model, torch.randn(N, *lead, 4))

    def test_wide_layers_by_gram_matrices(self) -> None:
        model = Net(lambda s, x: s.o(torch.tanh(s.a(x))).mean(1), a=nn.Linear(40, 50), o=nn.Linear(50, 3))
        each_way(model, torch.randn(N, 3, 40))

    def test_rows_with_zeros_behind_them_as_a_gpu_likes_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        padded: list[int] = []

        def aligned(x: Tensor, coarse: bool) -> Tensor:
            padded.append(-x.shape[-1] % 8)
            return F.pad(x, (0, padded[-1]))

        monkeypatch.setattr(factors, "aligned", aligned)
        model = Net(lambda s, x: s.o(torch.tanh(x @ s.a)).mean(1), a=parameter(42, 53), o=nn.Linear(53, 3))
        each_way(model, torch.randn(N, 3, 42))
        words = Net(lambda s, x: 0.1 * F.linear(s.e(x), s.e.weight)[..., :3].mean(1), e=nn.Embedding(61, 30))
        fast(words, torch.randint(0, 61, (N, 2)))
        assert {3, 6, 2} <= set(padded)

    def test_with_activations_in_place(self) -> None:
        each_way(nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)), torch.randn(N, 4))


CONVOLUTIONS: list[dict[str, Any]] = [
    {},
    {"stride": 2, "padding": 1},
    {"dilation": 2, "groups": 2},
    {"padding": "same", "dilation": 2},
    {"padding": "valid", "bias": False},
    *({"padding": 2, "padding_mode": mode} for mode in ("circular", "reflect", "replicate")),
    {"stride": 3, "padding": 2, "groups": 2, "dilation": 2},
]
SIZES = {1: (12,), 2: (7, 8), 3: (5, 6, 5)}
CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


class TestConvolutions:
    @pytest.mark.parametrize("dims", [1, 2, 3])
    @pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
    def test_convolution(self, dims: int, options: dict[str, Any]) -> None:
        if options.get("padding_mode") == "reflect" and dims == 3:
            pytest.skip("the double-precision loop is enough: three-dimensional reflection is the slow case")
        model = Net(lambda s, x: s.o(pooled(torch.tanh(s.c(x)))), c=CONV[dims](2, 4, 3, **options), o=nn.Linear(4, 3))
        fast(model, torch.randn(N, 2, *SIZES[dims]), single=dims < 3)

    @pytest.mark.parametrize("dims", [1, 2, 3])
    @pytest.mark.parametrize(
        "options",
        [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"stride": 2, "dilation": 3, "groups": 2}],
        ids=str,
    )
    def test_transposed_convolution(self, dims: int, options: dict[str, Any]) -> None:
        model = Net(
            lambda s, x: s.o(pooled(torch.tanh(s.c(x)))), c=TRANSPOSED[dims](2, 4, 3, **options), o=nn.Linear(4, 3)
        )
        fast(model, torch.randn(N, 2, *(3,) * dims), single=dims < 3)

    def test_in_each_way_with_rectangular_kernels(self) -> None:
        model = nn.Sequential(
            nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(0, 1)),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(4, 3, (2, 3), stride=(2, 1)),
            nn.Flatten(2),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        each_way(model, torch.randn(N, 2, 6, 5))


class TestEmbeddings:
    tokens = torch.randint(0, 7, (N, 6), generator=torch.Generator().manual_seed(1))

    @pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"padding_idx": -1}, {"sparse": True}], ids=str)
    def test_embedding(self, options: dict[str, Any]) -> None:
        each_way(Net(lambda s, t: s.o(s.e(t).mean(1)), e=nn.Embedding(7, 4, **options), o=nn.Linear(4, 3)), self.tokens)

    @pytest.mark.parametrize("mode", ["sum", "mean", "max"])
    @pytest.mark.parametrize("padding", [None, 1])
    def test_bag(self, mode: str, padding: int | None) -> None:
        bag = nn.EmbeddingBag(7, 4, mode=mode, padding_idx=padding)
        each_way(Net(lambda s, t: s.o(s.e(t)), e=bag, o=nn.Linear(4, 3)), self.tokens)

    def test_bag_with_weights_of_its_entries(self) -> None:
        model = Net(
            lambda s, t: s.o(s.e(t, per_sample_weights=s.w[t])),
            e=nn.EmbeddingBag(7, 4, mode="sum"),
            w=parameter(7),
            o=nn.Linear(4, 3),
        )
        each_way(model, self.tokens)

    def test_positions_are_the_same_rows_for_every_example(self) -> None:
        model = Net(
            lambda s, t: s.o(torch.tanh(s.e(t) + s.p(torch.arange(t.shape[1]))).mean(1)),
            e=nn.Embedding(7, 4),
            p=nn.Embedding(9, 4),
            o=nn.Linear(4, 3),
        )
        each_way(model, self.tokens)


NORMS = {
    "layer": lambda: nn.LayerNorm([4, 5]),
    "layer, last": lambda: nn.LayerNorm(5),
    "layer, no bias": lambda: nn.LayerNorm(5, bias=False),
    "group": lambda: nn.GroupNorm(2, 4),
    "instance": lambda: nn.InstanceNorm1d(4, affine=True),
    "rms": lambda: nn.RMSNorm(5),
    "rms, several": lambda: nn.RMSNorm([4, 5], eps=1e-3),
    "prelu": lambda: nn.PReLU(4),
    "prelu, one": lambda: nn.PReLU(),
}


class TestNormalisation:
    @pytest.mark.parametrize("kind", NORMS)
    def test_normalisation(self, kind: str) -> None:
        each_way(nn.Sequential(NORMS[kind](), nn.Flatten(), nn.Linear(20, 3)), torch.randn(N, 4, 5))

    @pytest.mark.parametrize("dims", [2, 3])
    def test_on_images_and_volumes(self, dims: int) -> None:
        norm = {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}[dims](4, affine=True)
        model = Net(lambda s, x: s.o(pooled(torch.tanh(s.g(s.i(x))))), i=norm, g=nn.GroupNorm(2, 4), o=nn.Linear(4, 3))
        fast(model, torch.randn(N, 4, *(3,) * dims))


RECURRENT: list[tuple[type[nn.RNNBase], dict[str, Any]]] = [
    *((kind, {}) for kind in (nn.LSTM, nn.GRU, nn.RNN)),
    *((kind, {"num_layers": 2, "bidirectional": True}) for kind in (nn.LSTM, nn.GRU, nn.RNN)),
    *((kind, {"bias": False}) for kind in (nn.LSTM, nn.GRU, nn.RNN)),
    (nn.RNN, {"nonlinearity": "relu"}),
    (nn.LSTM, {"proj_size": 2}),
    (nn.LSTM, {"proj_size": 2, "num_layers": 2, "bidirectional": True}),
]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
class TestRecurrent:
    @pytest.mark.parametrize(("kind", "options"), RECURRENT, ids=lambda x: getattr(x, "__name__", str(x)))
    @pytest.mark.parametrize("batch_first", [True, False])
    def test_recurrent(self, kind: type[nn.RNNBase], options: dict[str, Any], batch_first: bool) -> None:
        layer = kind(4, 3, batch_first=batch_first, **options)
        size = (layer.proj_size or 3) * (2 if layer.bidirectional else 1)

        def forward(s: Any, x: Tensor) -> Tensor:
            out = s.r(x if batch_first else x.transpose(0, 1))[0]
            return s.o(out.mean(1 if batch_first else 0))

        model = Net(forward, r=layer, o=nn.Linear(size, 3))
        fast(model, torch.randn(N, 4, 4), single=batch_first)
        fast(model, torch.randn(N, N, 4), single=False, units=USERS)

    def test_last_states_and_given_states(self) -> None:
        model = Net(
            lambda s, x: s.o(s.d(x, s.e(x)[1])[1][1][0]),
            e=nn.LSTM(4, 3, batch_first=True),
            d=nn.LSTM(4, 3, batch_first=True),
            o=nn.Linear(3, 3),
        )
        each_way(model, torch.randn(N, 4, 4))


class TestAttention:
    @pytest.mark.parametrize("weights", [True, False])
    @pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 6, "vdim": 6}, {"batch_first": False}], ids=str)
    def test_multihead_attention(self, options: dict[str, Any], weights: bool) -> None:
        options = {"batch_first": True, **options}

        def forward(s: Any, x: Tensor) -> Tensor:
            x = x if options["batch_first"] else x.transpose(0, 1)
            out = s.a(x, x, x, need_weights=weights)[0]
            return s.o(out.mean(1 if options["batch_first"] else 0))

        each_way(Net(forward, a=nn.MultiheadAttention(6, 2, **options), o=nn.Linear(6, 3)), torch.randn(N, 4, 6))

    def test_masks_and_other_keys(self) -> None:
        causal = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)

        def forward(s: Any, x: Tensor) -> Tensor:
            padding = x[..., 0] > 1.5
            padding = padding & ~padding.all(1, keepdim=True)
            padding[:, 0] = False
            mixed = s.a(x, x.flip(1), x * 2, key_padding_mask=padding, need_weights=False)[0]
            return s.o(s.b(mixed, x, x, attn_mask=causal.to(x.dtype))[0].mean(1))

        model = Net(
            forward,
            a=nn.MultiheadAttention(6, 2, batch_first=True),
            b=nn.MultiheadAttention(6, 3, batch_first=True),
            o=nn.Linear(6, 3),
        )
        each_way(model, torch.randn(N, 4, 6))

    def test_transformer_encoder_and_decoder(self) -> None:
        model = Net(
            lambda s, x: s.o(s.d(x, s.e(x)).mean(1)),
            e=nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True),
            d=nn.TransformerDecoderLayer(6, 2, 8, dropout=0.0, batch_first=True),
            o=nn.Linear(6, 3),
        )
        each_way(model, torch.randn(N, 4, 6))

    def test_attention_written_by_hand(self) -> None:
        def forward(s: Any, x: Tensor) -> Tensor:
            q, k, v = (y.unflatten(-1, (2, 3)).transpose(1, 2) for y in s.qkv(x).chunk(3, -1))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return s.o(out.transpose(1, 2).flatten(2).mean(1))

        each_way(Net(forward, qkv=nn.Linear(6, 18), o=nn.Linear(6, 3)), torch.randn(N, 4, 6))


class TestSharing:
    def test_tied_embedding_and_output(self) -> None:
        model = Net(
            lambda s, t: s.o(torch.tanh(s.e(t)).mean(1))[:, :3],
            e=nn.Embedding(7, 4, padding_idx=2),
            o=nn.Linear(4, 7, bias=False),
        )
        model.o.weight = model.e.weight
        each_way(model, TestEmbeddings.tokens)

    def test_tied_and_transposed(self) -> None:
        model = Net(lambda s, x: torch.tanh(x @ s.w) @ s.w.T[:, :3], w=parameter(4, 6))
        each_way(model, torch.randn(N, 4))

    def test_a_layer_called_several_times(self) -> None:
        def forward(s: Any, x: Tensor) -> Tensor:
            for _ in range(3):
                x = torch.tanh(s.a(x))
            return s.o(x)

        each_way(Net(forward, a=nn.Linear(4, 4), o=nn.Linear(4, 3)), torch.randn(N, 4))

    def test_frozen_and_unused_parameters(self) -> None:
        model = Net(lambda s, x: s.o(torch.tanh(s.a(x))), a=nn.Linear(4, 4), u=nn.Linear(3, 3), o=nn.Linear(4, 3))
        model.a.bias.requires_grad_(False)
        each_way(model, torch.randn(N, 4))


FUNCTIONAL: dict[str, tuple[Any, dict[str, Any]]] = {
    "linear": (lambda s, x: F.linear(x, s.w, s.b), {"w": (3, 4), "b": (3,)}),
    "matmul": (lambda s, x: x @ s.w + s.b, {"w": (4, 3), "b": (3,)}),
    "addmm": (lambda s, x: torch.addmm(s.b, x, s.w), {"w": (4, 3), "b": (3,)}),
    "addmm, scaled": (lambda s, x: torch.addmm(s.b, x, s.w, beta=0.5, alpha=2), {"w": (4, 3), "b": (3,)}),
    "einsum": (lambda s, x: torch.einsum("nd,hdk->nk", x, s.w), {"w": (2, 4, 3)}),
    "low rank": (lambda s, x: (x @ s.a) @ s.b, {"a": (4, 2), "b": (2, 3)}),
    "low rank, merged": (lambda s, x: x @ (s.a @ s.b), {"a": (4, 2), "b": (2, 3)}),
    "class token": (
        lambda s, x: torch.cat([s.c.expand(x.shape[0], 2, -1), x[:, None]], 1).flatten(1) @ s.w,
        {"c": (1, 1, 4), "w": (12, 3)},
    ),
    "scalar scale": (lambda s, x: x @ s.w * s.t, {"w": (4, 3), "t": ()}),
    "where": (lambda s, x: torch.where(x > 0, x, s.b) @ s.w, {"w": (4, 3), "b": (4,)}),
    "lookup by data": (lambda s, x: (x * s.c[(x[:, 0] > 0).long()]) @ s.w, {"c": (2, 4), "w": (4, 3)}),
    "penalty": (lambda s, x: x @ s.w + 0.1 * s.w.norm(), {"w": (4, 3)}),
    "in place": (lambda s, x: (x @ s.w).add_(s.b), {"w": (4, 3), "b": (3,)}),
    "difference": (lambda s, x: (x - s.b) @ s.w, {"w": (4, 3), "b": (4,)}),
    "from a parameter": (lambda s, x: (s.b - x) @ s.w, {"w": (4, 3), "b": (4,)}),
    "bilinear": (lambda s, x: F.bilinear(x, x.flip(1), s.w), {"w": (3, 4, 4)}),
}


class TestFunctional:
    @pytest.mark.parametrize("name", FUNCTIONAL)
    def test_raw_parameters(self, name: str) -> None:
        forward, shapes = FUNCTIONAL[name]
        each_way(Net(forward, **{key: parameter(*shape) for key, shape in shapes.items()}), torch.randn(N, 4))

    def test_derived_weights(self) -> None:
        def standardised(s: Any, x: Tensor) -> Tensor:
            w = s.c.weight
            w = (w - w.mean((1, 2), keepdim=True)) / (w.std((1, 2), keepdim=True) + 1e-5)
            return s.o(F.conv1d(x[:, None], w, s.c.bias).flatten(1))

        each_way(Net(standardised, c=nn.Conv1d(1, 2, 3), o=nn.Linear(4, 3)), torch.randn(N, 4))

    @pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.orthogonal])
    def test_parametrizations(self, wrap: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = nn.Sequential(wrap(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 3))
        fast(model, torch.randn(N, 4), single=False)

    @pytest.mark.parametrize("T", [5, 3])
    def test_folded_and_sequence_first_layouts(self, T: int) -> None:
        def forward(s: Any, x: Tensor) -> Tensor:
            n = x.shape[0]
            h = s.a(x.reshape(n * T, 4))
            h = torch.tanh(h.view(n, T, 6).transpose(0, 1))
            h = (s.m(h) + s.p).reshape(T * n, 6)
            h = s.c(h.unsqueeze(1)).mean(-1)[:, :1] * s.g(h)
            return s.k(h).view(T, n, 3).mean(0)

        model = Net(
            forward,
            a=nn.Linear(4, 6),
            m=nn.Linear(6, 6),
            p=parameter(T, 1, 6),
            g=nn.LayerNorm(6),
            c=nn.Conv1d(1, 2, 3),
            k=nn.Linear(6, 3),
        )
        each_way(model, torch.randn(N, T, 4))

    @pytest.mark.parametrize("windows", [2, 5])
    def test_examples_folded_with_windows(self, windows: int) -> None:
        def forward(s: Any, x: Tensor) -> Tensor:
            parts = x.reshape(-1, 3, 4)
            parts = parts + s.a(parts, parts, parts, need_weights=False)[0]
            parts = s.r(s.n(parts))[0]
            return s.o(parts.reshape(x.shape[0], -1, 4).mean(1))

        model = Net(
            forward,
            a=nn.MultiheadAttention(4, 2, batch_first=True),
            n=nn.LayerNorm(4),
            r=nn.GRU(4, 4, batch_first=True),
            o=nn.Linear(4, 3),
        )
        each_way(model, torch.randn(N, 3 * windows, 4))


class TestAutocast:
    """In bfloat16 the layers stay on the fast path and agree to its rounding."""

    @pytest.mark.parametrize("kind", ["convolution", "transformer", "recurrent", "raw"])
    def test_layers_stay_fast(self, kind: str) -> None:
        x = torch.randn(N, 6, 8)
        models: dict[str, nn.Module] = {
            "convolution": nn.Sequential(
                nn.Conv1d(6, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(24, 3)
            ),
            "transformer": Net(
                lambda s, x: s.o(s.n(s.e(s.a(x))).mean(1)),
                a=nn.Linear(8, 8),
                e=nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
                n=nn.LayerNorm(8),
                o=nn.Linear(8, 3),
            ),
            "recurrent": Net(
                lambda s, x: s.o(s.r(s.a(x))[0].mean(1)),
                a=nn.Linear(8, 8),
                r=nn.LSTM(8, 4, batch_first=True),
                o=nn.Linear(4, 3),
            ),
            "raw": Net(
                lambda s, x: torch.einsum("ni,ij->nj", s.a(x).mean(1) * s.g + s.b, s.w),
                a=nn.Linear(8, 8),
                g=parameter(8),
                b=parameter(8),
                w=parameter(8, 3),
            ),
        }
        model = models[kind]

        def losses(x: Tensor, y: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return F.cross_entropy(model(x), y, reduction="none")

        batch = (x, labels())
        found, reference = run(model, losses, batch, Ghost()), run(model, losses, batch, Loop())
        assert slower(found.notes) == []
        assert {s.dtype for s in found.sums} == {torch.float32}
        assert_same(found, reference, 2e-2)
