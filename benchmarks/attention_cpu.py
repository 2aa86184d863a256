"""Speed and memory of mechanisms on the CPU, compared with torch's fused attention and with materialised scores.

    python benchmarks/attention_cpu.py            everything, about seven minutes
    python benchmarks/attention_cpu.py --quick    fewer rounds (--smallest: seconds, nothing is stored)

Each row is a ratio: our speed / the peer's speed, as the median of interleaved rounds +- half the interquartile range. The rows
are stored in results/attention_cpu.json.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from timing import interleaved, make_parser, peak_bytes, ratio, store_rows
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import rheoscope as rs

D, HEADS = 64, 8
BLOCKED = ["sigmoid", "relu", "kernel_laplace", "kernel_polynomial", "sparsemax", "entmax15", "hard"]
MEASURED = [("sigmoid", False), ("sigmoid", True), ("entmax15", False), ("entmax15", True)]


@dataclass(frozen=True)
class Size:
    """Tokens for timing (`n`) and for memory (`long`), rounds, and the (mechanism, backward) pairs whose memory is measured."""

    n: int = 2048
    long: int = 16384
    rounds: int = 21
    measured: Sequence[tuple[str, bool]] = tuple(MEASURED)
    fresh: bool = True


def tokens(n: int, grad: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, 1, HEADS, n, D, generator=torch.Generator().manual_seed(0)).unbind(0)
    return tuple(x.contiguous().requires_grad_(grad) for x in (q, k, v))  # type: ignore[return-value]


def forward(run: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], object]:
    def call() -> None:
        with torch.no_grad():
            run(*inputs)

    return call


def with_backward(run: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(run(*inputs).sum(), inputs)


def against_sdpa(size: Size) -> list[dict[str, object]]:
    """The mechanisms bilinear, cosine and metric compared with torch's fused attention, with and without mask and backward."""
    mechanisms = {
        "bilinear": rs.mechanism("bilinear", dim=D),
        "cosine": rs.mechanism("cosine"),
        "metric": rs.mechanism("metric"),
    }
    rows = []
    for direction, make_call, grad in (("forward", forward, False), ("forward+backward", with_backward, True)):
        q, k, v = tokens(size.n, grad)
        for mask in ("none", "causal"):
            methods = {"sdpa": make_call(lambda q, k, v, mask=mask: sdpa(q, k, v, is_causal=mask == "causal"), q, k, v)}
            for name, mechanism in mechanisms.items():
                methods[name] = make_call(lambda q, k, v, f=mechanism, mask=mask: f(q, k, v, mask=mask), q, k, v)
            seconds = interleaved(methods, size.rounds)
            rows += [row(name, direction, mask, "sdpa", *ratio(seconds, name, "sdpa")) for name in mechanisms]
    return rows


def against_materialised(size: Size) -> list[dict[str, object]]:
    """The lowering `blocks` compared with the same mechanism with all scores in memory."""
    rows = []
    for direction, make_call, grad in (("forward", forward, False), ("forward+backward", with_backward, True)):
        q, k, v = tokens(size.n, grad)
        for name in BLOCKED:
            mechanism = rs.mechanism(name)
            if grad and not mechanism.domain.is_differentiable:
                continue
            methods = {
                lowering: make_call(
                    lambda q, k, v, lowering=lowering, f=mechanism: f(q, k, v, mask="causal", lowering=lowering),
                    q,
                    k,
                    v,
                )
                for lowering in ("blocks", "reference")
            }
            seconds = interleaved(methods, max(3, size.rounds // 5), warm=1)
            rows.append(
                row(f"{name} blocks", direction, "causal", "materialised", *ratio(seconds, "blocks", "reference"))
            )
    return rows


def memory(size: Size) -> list[dict[str, object]]:
    """Peak memory of `blocks` on a long text, as a fraction of one score table (the minimum of a materialised form)."""
    table = HEADS * size.long**2 * 4
    rows = []
    for name, backward in size.measured:
        script = (
            "import torch, rheoscope as rs\n"
            f"q, k, v = (torch.randn(1, {HEADS}, {size.long}, {D}, requires_grad={backward}) for _ in range(3))\n"
            f"f = rs.mechanism('{name}')\n"
            f"torch.set_grad_enabled({backward})\n"
            "f(q[:, :, :64], k[:, :, :64], v[:, :, :64], lowering='blocks')\n"
            "# measured\n"
            "o = f(q, k, v, mask='causal', lowering='blocks')\n"
        ) + ("torch.autograd.grad(o.sum(), (q, k, v))\n" if backward else "")
        share = peak_bytes(script, size.fresh) / table
        direction = "forward+backward" if backward else "forward"
        rows.append(
            {
                "name": f"{name} blocks, {size.long} tokens",
                "what": direction,
                "peer": "one table of scores",
                "memory share": share,
            }
        )
        print(
            f"{name:12s} {direction:17s} peak memory {100 * share:5.2f} % of one score table ({table / 2**30:.1f} GiB)",
            flush=True,
        )
    return rows


def row(name: str, direction: str, mask: str, peer: str, value: float, noise: float) -> dict[str, object]:
    print(f"{name:26s} {direction:17s} {mask:7s} {value:5.2f} +- {noise:.2f} of {peer}", flush=True)
    return {"name": name, "what": direction, "mask": mask, "peer": peer, "ratio": value, "noise": noise}


def main(argv: Sequence[str] | None = None) -> None:
    options = make_parser(__doc__).parse_args(argv)
    size = Size(16, 64, 2, MEASURED[1:2], fresh=False) if options.smallest else Size(rounds=7 if options.quick else 21)
    print(
        f"speed relative to the peer, N = {size.n}, d = {D}, {HEADS} heads, float32, {torch.get_num_threads()} threads"
    )
    store_rows("attention_cpu", against_sdpa(size) + against_materialised(size) + memory(size), options.smallest)


if __name__ == "__main__":
    main()
