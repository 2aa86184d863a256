"""Speed of measures that compare clusterings (ARI, NMI, silhouette), relative to scikit-learn.

    python benchmarks/clusterings.py [--quick | --smallest]

The labels of 20 to 1024 tokens are random, in float64 on the CPU. A ratio is scikit-learn's time divided by ours, each in its
fastest round, because other rounds may be slowed by other processes. Above 1, we are faster. The import time of scikit-learn is
also reported.
"""

import time
from collections.abc import Sequence

import torch
from timing import interleaved, make_parser, store_rows

from rheoscope.flow.clusters.analysis import adjusted_rand_index, normalised_mutual_information, silhouette


def import_seconds() -> float:
    """Seconds to import scikit-learn's metrics after scipy."""
    import scipy.special  # noqa: F401

    start = time.perf_counter()
    import sklearn.metrics  # noqa: F401

    return time.perf_counter() - start


def compare(tokens: int, rounds: int) -> dict[str, object]:
    """Time ratios and differences of the results for one number of tokens."""
    from sklearn import metrics

    generator = torch.Generator().manual_seed(tokens)
    a, b = torch.randint(0, max(2, tokens // 8), (2, tokens), generator=generator)
    x = torch.randn(tokens, 64, generator=generator, dtype=torch.float64)
    distances = torch.cdist(x, x).fill_diagonal_(0)
    pairs = {
        "ARI": (lambda: adjusted_rand_index(a, b), lambda: metrics.adjusted_rand_score(a.numpy(), b.numpy())),
        "NMI": (
            lambda: normalised_mutual_information(a, b),
            lambda: metrics.normalized_mutual_info_score(a.numpy(), b.numpy()),
        ),
        "silhouette": (
            lambda: silhouette(distances, a),
            lambda: metrics.silhouette_score(distances.numpy(), a.numpy(), metric="precomputed"),
        ),
    }
    row: dict[str, object] = {"tokens": tokens}
    for name, (ours, theirs) in pairs.items():
        seconds = interleaved({"ours": ours, "theirs": theirs}, rounds)
        row[name] = round(min(seconds["theirs"]) / min(seconds["ours"]), 2)
        row[f"{name} ms"] = round(1000 * min(seconds["ours"]), 3)
        row[f"{name} difference"] = abs(float(ours()) - float(theirs()))
    return row


def main(argv: Sequence[str] | None = None) -> None:
    options = make_parser(__doc__).parse_args(argv)
    rows: list[dict[str, object]] = [{"seconds to import scikit-learn": round(import_seconds(), 2)}]
    print(rows[0], flush=True)
    for tokens in (20,) if options.smallest else (20, 64, 256, 1024):
        rows.append(compare(tokens, rounds=5 if options.smallest or options.quick else 31))
        print(rows[-1], flush=True)
    store_rows("clusterings", rows, options.smallest)


if __name__ == "__main__":
    main()
