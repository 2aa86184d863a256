import torch

from rheoscope.attention.normaliser.hard import Hardmax


def test_ties_share_weight_and_empty_rows_are_zero() -> None:
    inf = torch.inf
    s = torch.tensor([[[[1.0, 3.0, 2.0], [3.0, 1.0, 3.0], [-inf, -5.0, -inf], [-inf, -inf, -inf]]]])
    assert Hardmax()(s)[0, 0].tolist() == [[0, 1, 0], [0.5, 0, 0.5], [0, 1, 0], [0, 0, 0]]
