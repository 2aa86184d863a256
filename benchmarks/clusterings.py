"""How alike two clusterings are, and how far apart their clusters: ours beside scikit-learn's, in one run.

    python benchmarks/clusterings.py [--quick | --smallest]

Adjusted Rand index, normalised mutual information and silhouette of random labels of 20 to 1024 tokens, float64 on the CPU.
Ratios are time of scikit-learn over time of ours, each in its fastest round (a busy machine doubles the others): above 1 we are
faster. Also what importing scikit-learn costs, once.
"""

import time
from collections.abc import Sequence

import torch
from timing import arguments, interleaved, keep

from rheoscope.flow.clusters.analysis import adjusted_rand_index, normalised_mutual_information, silhouette


def importing() -> float:
    """Seconds that the peer's functions take to come, scipy being there already."""
    import scipy.special  # noqa: F401

    start = time.perf_counter()
    import sklearn.metrics  # noqa: F401

    return time.perf_counter() - start


def compare(tokens: int, rounds: int) -> dict[str, object]:
    """Ratios of one size, with the largest difference of the results."""
    from sklearn import metrics

    draw = torch.Generator().manual_seed(tokens)
    a, b = torch.randint(0, max(2, tokens // 8), (2, tokens), generator=draw)
    x = torch.randn(tokens, 64, generator=draw, dtype=torch.float64)
    far = torch.cdist(x, x).fill_diagonal_(0)
    pairs = {
        "ARI": (lambda: adjusted_rand_index(a, b), lambda: metrics.adjusted_rand_score(a.numpy(), b.numpy())),
        "NMI": (
            lambda: normalised_mutual_information(a, b),
            lambda: metrics.normalized_mutual_info_score(a.numpy(), b.numpy()),
        ),
        "silhouette": (
            lambda: silhouette(far, a),
            lambda: metrics.silhouette_score(far.numpy(), a.numpy(), metric="precomputed"),
        ),
    }
    row: dict[str, object] = {"tokens": tokens}
    for name, (ours, theirs) in pairs.items():
        seconds = interleaved({"ours": ours, "theirs": theirs}, rounds)
        row[name] = round(min(seconds["theirs"]) / min(seconds["ours"]), 2)
        row[f"{name} ms"] = round(1000 * min(seconds["ours"]), 3)
        row[f"{name} difference"] = abs(float(ours()) - float(theirs()))
    return row


def main(words: Sequence[str] | None = None) -> None:
    asked = arguments(__doc__).parse_args(words)
    rows: list[dict[str, object]] = [{"seconds to import scikit-learn": round(importing(), 2)}]
    print(rows[0], flush=True)
    for tokens in (20,) if asked.smallest else (20, 64, 256, 1024):
        rows.append(compare(tokens, rounds=5 if asked.smallest or asked.quick else 31))
        print(rows[-1], flush=True)
    keep("clusterings", rows, asked.smallest)


if __name__ == "__main__":
    main()
