"""The fake device raises where a GPU would, and nowhere else."""

import pytest
import torch

from tests.elsewhere import AWAY, elsewhere


def test_operations_on_two_devices_raise() -> None:
    with elsewhere() as device:
        x = torch.ones(3, 4).to(device)
        for mistake in (
            lambda: x + torch.ones(3, 4),
            lambda: x @ torch.eye(4),
            lambda: torch.cat([x, torch.zeros(1, 4)]),
            lambda: torch.randn(3, device=device, generator=torch.Generator()),
            lambda: x.numpy(),
        ):
            with pytest.raises(RuntimeError):
                mistake()


def test_operations_on_one_device_work() -> None:
    with elsewhere() as device:
        x = torch.arange(12.0, device=device).view(3, 4).requires_grad_()
        y = (x[[0, 2]] * torch.tensor(2.0) + x.new_tensor([1.0, 0, 0, 0]))[torch.arange(2)]
        y.sum().backward()
        assert y.device == x.grad.device == AWAY
        assert y.tolist() == [[1.0, 2.0, 4.0, 6.0], [17.0, 18.0, 20.0, 22.0]]
        assert x.grad.cpu().numpy().sum() == 16
