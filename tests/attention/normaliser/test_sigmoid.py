import torch

from rheoscope.attention.normaliser.sigmoid import Sigmoid


def test_weights_are_independent_sigmoids() -> None:
    s = torch.tensor([[[[0.0, 2.0, -torch.inf, 1e4, -1e4]]]], dtype=torch.float64)
    a = Sigmoid(bias=-2.0)(s).flatten()
    assert a[1].item() == 0.5
    assert a[2:].tolist() == [0.0, 1.0, 0.0]
    assert a[0].item() == (1 / (1 + torch.tensor(2.0).double().exp())).item()
