"""The monitor in two processes: replicated (DDP) and sharded in both ways (FSDP), it reads what one process reads."""

import json
import os
import socket
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import rheoscope as rs
from rheoscope.learn.monitor.logs import read_readings
from tests.learn.monitor.cases import batch, small_gpt2
from tests.processes import Fork, run_in_fork

KINDS = ("ddp", "wrapped", "sharded")


def wrap(net: Any, kind: str) -> Any:
    """The network in several processes: DistributedDataParallel, FullyShardedDataParallel or fully_shard."""
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(net)
    if kind == "wrapped":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=True)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(net, mesh=init_device_mesh("cpu", (2,)))


def train_some_steps(net: Any, monitor: Any) -> None:
    """Two steps on the same batch in every process, so that one process takes the same."""
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(2):
        loss = net(input_ids=batch(step), labels=batch(step)).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        monitor.step(loss)


def train_in_two_processes(out: Path) -> None:
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    try:
        for kind in KINDS:
            net = wrap(small_gpt2(dropout=0.0), kind)
            monitor = rs.Monitor(net, every=1, log=out / kind)
            train_some_steps(net, monitor)
            (out / f"{kind}{os.environ['RANK']}").write_text(json.dumps(len(monitor.readings)))
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_read_what_one_reads(tmp_path: Path) -> None:
    alone = small_gpt2(dropout=0.0)
    monitor = rs.Monitor(alone, every=1)
    train_some_steps(alone, monitor)
    with socket.create_server(("127.0.0.1", 0)) as free:
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    with Fork(partial(train_in_two_processes, tmp_path), RANK="0", **environment) as first:
        second = run_in_fork(partial(train_in_two_processes, tmp_path), RANK="1", **environment)
        assert second.returncode == 0, second.stderr
        assert first.done().returncode == 0, first.done().stderr
    for kind in KINDS:
        assert [json.loads((tmp_path / f"{kind}{rank}").read_text()) for rank in (0, 1)] == [2, 0], first.done().stderr
        for reading, expected in zip(read_readings(tmp_path / kind), monitor.readings, strict=True):
            assert reading.loss == pytest.approx(expected.loss, abs=1e-4)
            for name, values in expected.values.items():
                assert np.allclose(reading.values[name], values, atol=1e-3), (kind, name)
