"""A tape holds what ran, and replays it with other numbers."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rheoscope.pretrained.finder.coordinates import coordinate_map
from rheoscope.pretrained.finder.tape import Tape, needed_operations, record_tape, replay

N = 5


class Mixer(nn.Module):
    """Layout, a write through a view, a weight and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        buffer = y.new_empty(N, 8)
        buffer[:, :6] = y
        buffer[:, 6:] = 2 * x[:, :2]
        return nn.functional.layer_norm(buffer, (8,)).T.contiguous()


def recorded(seed: int = 0) -> tuple[Tape, Tensor, Tensor]:
    torch.manual_seed(seed)
    module, x = Mixer().double(), torch.randn(N, 6, dtype=torch.float64)
    with record_tape(module, N) as tape:
        out = module(x)
    return tape, x, out


def test_a_replay_with_the_recorded_input_gives_the_recorded_output() -> None:
    tape, x, out = recorded()
    (source,) = (v for v, y in enumerate(tape.tensors) if y is x)
    target = tape.calls[-1].outputs[0]
    assert torch.equal(replay(tape, [target], {source: x})[0], out)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6))
def test_a_replay_equals_the_module_on_other_numbers(seed: int) -> None:
    torch.manual_seed(0)
    module = Mixer().double()
    tape, x, _ = recorded()
    (source,) = (v for v, y in enumerate(tape.tensors) if y is x)
    other = torch.randn(N, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    replayed = replay(tape, [tape.calls[-1].outputs[0]], {source: other})[0]
    with torch.no_grad():
        assert torch.equal(replayed, module(other))


def test_a_write_through_a_view_is_a_step_on_the_way() -> None:
    tape, x, _ = recorded()
    (source,) = (v for v, y in enumerate(tape.tensors) if y is x)
    names = [operation.name for operation in needed_operations(tape, [tape.calls[-1].outputs[0]], {source})]
    assert names.count("slice_scatter") == 2


def test_a_change_of_shape_in_place_is_no_view_of_itself() -> None:
    """Recording it went on for ever, for example with adaptive pooling."""
    module, x = nn.AdaptiveAvgPool1d(1).double(), torch.randn(2, 3, N, dtype=torch.float64)
    with record_tape(module, N) as tape:
        out = module(x).squeeze_(-1)
    assert out.shape == (2, 3)
    assert "squeeze" in [operation.name for operation in tape.operations]


def test_a_replay_computes_in_float64_whatever_was_recorded() -> None:
    module, x = nn.Linear(3, 3).bfloat16(), torch.randn(N, 3).bfloat16()
    with record_tape(module, N) as tape:
        module(x)
    (source,) = (v for v, y in enumerate(tape.tensors) if y is x)
    (out,) = replay(tape, [tape.calls[-1].outputs[0]], {source: x.double()})
    expected = x.double() @ module.weight.double().T + module.bias.double()
    assert out.dtype is torch.float64
    assert torch.allclose(out, expected, atol=1e-14)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(6)), st.integers(0, 10**6))
def test_the_map_of_coordinates_finds_a_permutation_with_its_factors(order: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    gain, bias = (torch.rand(6, generator=generator, dtype=torch.float64) + 0.5 for _ in range(2))

    class Shuffle(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x[:, order] * gain + bias).view(N, 2, 3).transpose(0, 1)

    x = torch.randn(N, 6, dtype=torch.float64, generator=generator)
    with record_tape(module := Shuffle(), N) as tape:
        module(x)
    (source,) = (v for v, y in enumerate(tape.tensors) if y is x)
    placement = coordinate_map(tape, source, tape.calls[-1].outputs[0])
    assert placement.index.tolist() == list(order)
    assert torch.allclose(placement.gain, gain)
    assert torch.allclose(placement.bias, bias)
    assert placement.shape == (2, 3)
