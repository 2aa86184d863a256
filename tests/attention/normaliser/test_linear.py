import torch

from rheoscope.attention.normaliser.linear import DivideBySum


def test_divides_by_the_sum_over_allowed_keys() -> None:
    inf = torch.inf
    s = torch.tensor([[[[1.0, 3.0, 0.0], [1.0, 3.0, -inf], [-inf, -inf, -inf], [0.0, 0.0, -inf]]]])
    assert DivideBySum()(s)[0, 0].tolist() == [[0.25, 0.75, 0], [0.25, 0.75, 0], [0, 0, 0], [0, 0, 0]]
