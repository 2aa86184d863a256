import torch

from rheoscope.attention.normaliser.relu import ReLU


def test_divides_by_the_number_of_allowed_keys() -> None:
    inf = torch.inf
    s = torch.tensor([[[[1.0, -3.0, 2.0, 0.0], [1.0, -3.0, -inf, -inf], [-inf, -inf, -inf, -inf]]]])
    assert ReLU()(s)[0, 0].tolist() == [[0.25, 0, 0.5, 0], [0.5, 0, 0, 0], [0, 0, 0, 0]]
