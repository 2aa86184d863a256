"""Model-FLOP utilisation of a training step of a 124M decoder on a GPU, compared with nanoGPT at the same shape.

    python benchmarks/training_cuda.py --nanogpt PATH/TO/nanoGPT/model.py [--batch 32]
    python benchmarks/training_cuda.py --smallest     a small decoder, few steps, nothing is stored

Both models have GPT-2's shape, 1024 tokens, bfloat16 autocast, torch.compile, fused AdamW and no dropout. Their steps use the same
random tokens and are interleaved in one process. A step has 6 · parameters · tokens + 12 · layers · tokens² · width / 2 FLOPs (causal),
as in `rs.transformer_cost`.
"""

import importlib.util
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from timing import interleaved, make_parser, ratio, store_rows

from rheoscope.models.optimiser import make_optimisers
from rheoscope.models.recipes import gpt2
from rheoscope.models.task import NextTokenTask, Objective
from rheoscope.models.transformer import build, parameter_count

PEAK_FLOPS = 989e12
"""Peak FLOP/s in dense bfloat16, from the data sheet of the H100 and H200."""


def compiled_decoder(recipe: Any) -> tuple[torch.nn.Module, Any]:
    model = build(recipe.config).cuda().train()
    (adamw,), objective = make_optimisers(model, recipe), Objective(model, NextTokenTask(None), 0.0)
    objective.compile()
    return model, stepper(lambda x, y: objective(x, y)[0] / y.numel(), model, adamw)


def nanogpt(recipe: Any, file: Path) -> Any:
    spec = importlib.util.spec_from_file_location("nanogpt_model", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = recipe.config
    shape = {"n_layer": config.depth, "n_head": config.heads, "n_embd": config.width, "vocab_size": config.vocabulary}
    model = module.GPT(module.GPTConfig(**shape, block_size=config.context, dropout=0.0, bias=False)).cuda().train()
    compiled = torch.compile(model)
    adamw = model.configure_optimizers(recipe.weight_decay, recipe.rate, recipe.betas, "cuda")
    return stepper(lambda x, y: compiled(x, y)[1], model, adamw)


def stepper(loss: Any, model: torch.nn.Module, adamw: torch.optim.Optimizer) -> Any:
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss_value = loss(x, y)
        loss_value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        torch.cuda.synchronize()

    return step


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args(argv)
    torch.set_float32_matmul_precision("high")
    recipe = gpt2()
    if options.smallest:
        recipe = replace(recipe, config=recipe.config.with_changes(width=128, depth=2, heads=2))
    x, y = torch.randint(0, 50257, (2, options.batch, 1024), device="cuda").unbind()
    model, step = compiled_decoder(recipe)
    parameters = parameter_count(model)
    methods = {"rheoscope": lambda: step(x, y)}
    if options.nanogpt:
        peer = nanogpt(recipe, options.nanogpt)
        methods["nanoGPT"] = lambda: peer(x, y)
    seconds = interleaved(methods, rounds=5 if options.quick or options.smallest else 25, warm=5)
    config, tokens = recipe.config, options.batch * 1024
    flops = 6 * parameters * tokens + 6 * config.depth * tokens * 1024 * config.width
    rows = []
    for name, times in seconds.items():
        middle = statistics.median(times)
        rows.append(
            {
                "name": name,
                "ms": 1000 * middle,
                "MFU": flops / middle / PEAK_FLOPS,
                "tokens per second": tokens / middle,
            }
        )
        print(
            f"{name:12s} {1000 * middle:7.1f} ms/step   {100 * flops / middle / PEAK_FLOPS:5.1f} % MFU   {tokens / middle:9.0f} tokens/s"
        )
    if options.nanogpt:
        speed, noise = ratio(seconds, "rheoscope", "nanoGPT")
        print(f"speed of rheoscope over nanoGPT: {speed:.3f} +- {noise:.3f}")
        rows.append({"name": "rheoscope over nanoGPT", "speed": speed, "noise": noise})
    store_rows("training_cuda", rows, options.smallest)


if __name__ == "__main__":
    main()
