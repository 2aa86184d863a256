"""Train a sparse autoencoder on the points of a model: `rheoscope features train`."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.running.feature_activations import TopK
from rheoscope.running.feature_sites import Site, check_writable
from rheoscope.running.features import Features
from rheoscope.running.progress import tick
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError

Points = Float[Tensor, "n d"]


@dataclass(frozen=True)
class FeatureRecipe:
    """A top-k autoencoder: `size` features, of which `k` are active per token.

    The points of `tokens` tokens are read in windows of `window` tokens, and passed `epochs` times in batches of `batch` with Adam at
    `rate`, which falls to 0 over the last fifth. Every batch, the `revived` features that were inactive for longest also fit what the
    others leave (AuxK), so that few features stay inactive for ever.
    """

    size: int = 1024
    k: int = 24
    tokens: int = 300_000
    epochs: int = 5
    batch: int = 2048
    rate: float = 0.001
    window: int = 256
    revived: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value <= 0 and name not in ("seed", "revived"):
                raise RheoscopeError(
                    Message("{setting} is too small, got {value}", setting=name, value=value),
                    use(**{name: getattr(FeatureRecipe, name)}),
                )
        if self.k > self.size:
            raise RheoscopeError(
                Message("k must be at most the size of the dictionary ({size}), got {k}", size=self.size, k=self.k),
                use(k=24),
            )


def train_features(
    model: RunnableModel, documents: Iterable[str], site: str, recipe: FeatureRecipe | None = None
) -> Features:
    """A dictionary of a site, trained on the points of these documents.

    **Formula** minimise ‖x − b − Σ_a f_a d_a‖² with f = TopK((x − b) W_enc + b_enc) and unit directions d_a.

    **Laws** The same documents, recipe and machine give the same dictionary.

    **Source** Gao et al. 2024, Scaling and evaluating sparse autoencoders.

    >>> import rheoscope as rs
    >>> from rheoscope.learn.feature_training import FeatureRecipe
    >>> recipe = FeatureRecipe(size=16, k=4, tokens=64, epochs=1, batch=16, window=32)
    >>> len(rs.train_features(rs.load(), ["The keys to the cabinet are on the table. " * 12], "L2.resid_post", recipe))
    16
    """
    recipe, place = recipe or FeatureRecipe(), Site.parse(site)
    place.check_layer(model.view)
    check_writable(place)
    points = collect_points(model, documents, place, recipe)
    if len(points) < recipe.size:
        raise RheoscopeError(
            Message("the texts have {n:,} tokens, too few for {size:,} features", n=len(points), size=recipe.size),
            use(size=max(recipe.k, len(points) // 10)),
        )
    # rounded to what the stored files hold
    W_enc, b_enc, W_dec, centre = (tensor.half().float() for tensor in fit(points, recipe))
    facts = {"layout": "SAELens", "architecture": "topk", "model": model.view.name}
    return Features(W_enc, b_enc, W_dec, centre, TopK(recipe.k), place, place, centre, facts=facts)


def windows(model: RunnableModel, documents: Iterable[str], length: int) -> Iterator[Int[Tensor, " n"]]:
    """The documents as token ids in windows of at most `length` tokens. Each starts with the model's first token, if it has one."""
    limit = min(length, model.view.context_length or length)
    start = model.encode("")
    for document in documents:
        ids = model.encode(document)
        ids = ids[len(start) :] if ids[: len(start)] == start else ids
        for first in range(0, len(ids), limit - len(start)):
            yield torch.tensor([*start, *ids[first : first + limit - len(start)]])


@torch.no_grad()
def collect_points(model: RunnableModel, documents: Iterable[str], site: Site, recipe: FeatureRecipe) -> Points:
    """The vectors of the first `recipe.tokens` tokens of the documents at a site."""
    collected, n_tokens = list[Points](), 0
    for ids in windows(model, documents, recipe.window):
        trace = model.trace(ids.tolist())
        collected.append(site.vectors(trace, list(range(len(trace)))).cpu())
        n_tokens += len(trace)
        tick(min(n_tokens, recipe.tokens), 2 * recipe.tokens)
        if n_tokens >= recipe.tokens:
            break
    return torch.cat(collected)[: recipe.tokens] if collected else torch.zeros(0, model.view.width)


def fit(points: Points, recipe: FeatureRecipe) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W_enc (d, m), b_enc, W_dec (m, d) with unit rows, and the constant, for these points."""
    generator = torch.Generator().manual_seed(recipe.seed)
    centre = points.mean(0)
    scale = float((points - centre).norm(dim=-1).mean())
    start = points[torch.randperm(len(points), generator=generator)[: recipe.size]] - centre
    W_dec = torch.nn.functional.normalize(start, dim=-1).requires_grad_()
    W_enc = _scaled_encoder(start / scale, W_dec.detach(), recipe.k).requires_grad_()
    b_enc = torch.zeros(recipe.size, requires_grad=True)
    parameters = [W_enc, b_enc, W_dec]
    optimiser = torch.optim.Adam(parameters, lr=recipe.rate)
    n_steps = recipe.epochs * (len(points) // recipe.batch or 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, 5 * (1 - step / n_steps)))
    idle = torch.zeros(recipe.size)
    for step in range(n_steps):
        rows = torch.randint(len(points), (recipe.batch,), generator=generator)
        x = (points[rows] - centre) / scale
        products = x @ W_enc + b_enc
        activations = TopK(recipe.k).apply(products)
        residual = x - activations @ W_dec
        loss = residual.square().sum(-1).mean() + _revival_loss(residual.detach(), products, W_dec, idle, recipe)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            W_dec /= W_dec.norm(dim=-1, keepdim=True)
            idle = torch.where((activations > 0).any(0), 0, idle + 1)
        tick(n_steps + step + 1, 2 * n_steps)
    return W_enc.detach(), b_enc.detach() * scale, W_dec.detach(), centre


def _scaled_encoder(x: Points, W_dec: Float[Tensor, "m d"], k: int) -> Float[Tensor, "d m"]:
    """W_decᵀ times the factor with which these points are reconstructed best: each point is near several directions."""
    reconstruction = TopK(k).apply(x @ W_dec.mT) @ W_dec
    return W_dec.mT * ((x * reconstruction).sum() / reconstruction.square().sum())


def _revival_loss(
    residual: Points, products: Float[Tensor, "n m"], W_dec: Tensor, idle: Float[Tensor, " m"], recipe: FeatureRecipe
) -> Tensor:
    """How well the features that have been inactive for longest fit what the others leave, as a small part of the loss."""
    if not recipe.revived or not bool((idle > IDLE_STEPS).any()):
        return products.new_zeros(())
    candidates = products.masked_fill(idle <= IDLE_STEPS, -torch.inf)
    largest = candidates.topk(min(recipe.revived, int((idle > IDLE_STEPS).sum())), dim=-1)
    activations = torch.zeros_like(products).scatter(-1, largest.indices, largest.values.relu())
    return REVIVAL_WEIGHT * (residual - activations @ W_dec).square().sum(-1).mean()


IDLE_STEPS = 20
"""A feature that was inactive in more batches than this is revived."""
REVIVAL_WEIGHT = 1 / 32
"""The weight of the loss of revived features."""
