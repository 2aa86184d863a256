"""The declared fields of the analysis `distortion`."""

from rheoscope.messages.message import Message
from rheoscope.space.analysis import Field

IMAGE_DIMS = ("layer", "head", "image")
DEFINITIONS = {
    "spread": Message(
        "ratio of the 95 % and 5 % quantiles of the stretch ‖y_i − y_j‖/‖x̂_i − x̂_j‖ over pairs (1 for an "
        "isometry up to scale)"
    ),
    "neighbours": Message(
        "share of a token's nearest neighbours in E that are still nearest in the image (of equally near tokens, the earlier)"
    ),
    "trustworthiness": Message(
        "1 minus the rank penalty of tokens that become neighbours in the image only (Venna and Kaski)"
    ),
    "continuity": Message(
        "1 minus the rank penalty of neighbours in E that are no longer neighbours in the image (Venna and Kaski)"
    ),
    "rsa": Message("Spearman correlation of the pairwise distances in the image and in E"),
    "cka": Message("linear CKA: cosine of the centred inner products of the image and of the cloud"),
}
"""Field → its definition. Each field also has a null and a version for q, k and v."""
FIELDS = (
    {
        name: Field(IMAGE_DIMS, definition, null=f"{name}_null", null_sd=f"{name}_null_sd")
        for name, definition in DEFINITIONS.items()
    }
    | {
        f"{name}_null": Field(
            IMAGE_DIMS,
            Message("mean of {field} over random heads with the same singular values", field=name),
            basis_dependent=True,
        )
        for name in DEFINITIONS
    }
    | {
        f"{name}_null_sd": Field(
            IMAGE_DIMS,
            Message("standard deviation of {field} over random heads with the same singular values", field=name),
            basis_dependent=True,
        )
        for name in DEFINITIONS
    }
    | {
        f"{name}_projection": Field(
            ("layer", "image"),
            Message("mean of {field} over random projections of the same rank", field=name),
            basis_dependent=True,
        )
        for name in DEFINITIONS
    }
    | {
        f"{name}_raw": Field(
            ("layer", "head", "raw_image"),
            Message("{field} of the raw vectors q, k and v (x̂ D_g W_Q, …)", field=name),
            gauge_dependent=True,
        )
        for name in DEFINITIONS
    }
    | {
        "rsa_error": Field(IMAGE_DIMS, "standard error of rsa if only some tokens are sampled"),
        "collapse": Field(
            IMAGE_DIMS,
            "share of the variance of the cloud in directions that the image does not read",
            null="collapse_null",
        ),
        "collapse_null": Field(IMAGE_DIMS, "collapse of a random head of the same rank, 1 − r/d"),
        "rank": Field(
            IMAGE_DIMS, "number of directions that the image reads: singular values above 1e-6 of the largest"
        ),
        "principal_angles": Field(
            ("layer", "head", "angle"),
            "principal angles between the subspaces that queries and keys read, spanned by singular vectors above 1e-6 of the largest",
            unit="radians",
        ),
        "mismatch": Field(
            ("layer", "head"),
            "mean sin² of the principal angles; 0 if queries and keys read the same subspace, 1 if theirs are orthogonal",
            null="mismatch_null",
            null_sd="mismatch_null_sd",
        ),
        "mismatch_null": Field(("layer", "head"), "mean of mismatch over random subspaces, 1 − r/d"),
        "mismatch_null_sd": Field(("layer", "head"), "standard deviation of mismatch over random subspaces"),
        "trace_share": Field(
            ("layer", "head"),
            "tr M / ‖M‖_*; 1 if M is positive semi-definite, −1 if it is negative semi-definite",
        ),
        "mean_rsa": Field(("image",), "mean of rsa over all heads"),
        "mean_rsa_null_draws": Field(
            ("draw", "image"),
            "mean of rsa over all heads on a randomly rotated cloud, for every draw",
            basis_dependent=True,
        ),
        "mean_mismatch": Field(
            (), "mean of mismatch over all heads", null="mean_mismatch_null", null_sd="mean_mismatch_null_sd"
        ),
        "mean_mismatch_null": Field((), "mean of mismatch_null over all heads"),
        "mean_mismatch_null_sd": Field((), "standard deviation of mean_mismatch over random subspaces"),
    }
)
