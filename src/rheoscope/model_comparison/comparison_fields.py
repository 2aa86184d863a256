"""The fields of a comparison of two models, with their axes and definitions."""

from rheoscope.messages.message import Message
from rheoscope.space.analysis import Field, with_interval

HEAD, STEP = ("layer", "head"), ("step",)

WEIGHT_FIELDS = {
    "M_distance": Field(
        HEAD,
        Message(
            "‖M − M'‖ / √((‖M‖² + ‖M'‖²)/2) of the QK circuits of both models (δ = 0 under RoPE): 0 if equal, about 1.41 if unrelated"
        ),
    ),
    "M_distance_max": Field(
        HEAD,
        Message(
            "the largest of these distances over the offsets δ = 0, 1, 2, 4, …, 64; equal to the first without RoPE"
        ),
    ),
    "F_distance": Field(HEAD, Message("the same distance of the OV circuits F")),
}
BEHAVIOUR_FIELDS = {
    "attention": Field(
        HEAD,
        Message(
            "share of attention that moves to other keys (total variation, mean over queries), on the first model's points"
        ),
    ),
    "displacement": Field(
        HEAD,
        Message(
            "‖Δ' − Δ‖ / √((‖Δ‖² + ‖Δ'‖²)/2) of the updates that a head makes to all tokens, on the first model's points"
        ),
    ),
    "displacement_cosine": Field(HEAD, Message("cosine of these updates over all tokens")),
    "stream_change": Field(
        HEAD,
        Message(
            "‖Δ' − Δ‖ relative to the length of the point that it changes, mean over tokens, on the first model's points"
        ),
    ),
    "logit_change": Field(
        HEAD,
        Message(
            "change of what a head writes to the logit of the first model's likeliest next token, minus the mean logit; mean over tokens"
        ),
        unit="logits",
    ),
    "realised_attention": Field(
        HEAD, Message("total variation of the attention weights, each model on its own points")
    ),
    "realised_displacement": Field(HEAD, Message("relative difference of the updates, each model on its own points")),
    "mlp": Field(("layer",), Message("relative difference of the updates of both MLPs, on the first model's points")),
}
FLOW_FIELDS = {
    "divergence": Field(
        STEP, Message("‖x' − x‖ / √((‖x‖² + ‖x'‖²)/2) of the points of a token in both models, mean over tokens")
    ),
    "shape_change": Field(STEP, Message("1 − RSA of both clouds: 0 if all pairwise distances have the same order")),
}
PREDICTION_FIELDS = {
    "kl": Field(
        (), Message("KL divergence of the second model's prediction from the first's, mean over tokens"), unit="nats"
    ),
    "same_token": Field((), Message("share of tokens after which both models find the same token likeliest")),
    "loss_first": Field((), Message("loss of the first model per token"), unit="nats"),
    "loss_second": Field((), Message("loss of the second model per token"), unit="nats"),
    "loss_difference": Field((), Message("loss of the second model minus that of the first, per token"), unit="nats"),
}
MATCH_FIELDS = {
    "depth_similarity": Field(
        ("layer",),
        Message("RSA of the clouds after a layer and after the other model's layer at the same relative depth"),
    ),
    "matched_similarity": Field(
        ("layer",), Message("RSA of the clouds after a layer and after its most similar layer of the other model")
    ),
    "head_similarity": Field(
        HEAD,
        Message(
            "RSA of the updates of a head and of its most similar head of the other model, chosen on the same texts"
        ),
    ),
}
OF_TEXTS = {
    name: field
    for part in (BEHAVIOUR_FIELDS, FLOW_FIELDS, PREDICTION_FIELDS, MATCH_FIELDS)
    for name, field in part.items()
}
"""The fields that are means over texts and have an interval."""
OTHER_FIELDS = {
    "change": Field(
        ("ranked_head",),
        Message(
            "the number by which heads are ranked, which the setting rank names. Without a text it is the larger of M_distance and "
            "F_distance. For matched heads it is 1 − head_similarity"
        ),
    ),
    "first_step": Field(
        (),
        Message("index of the first step whose divergence exceeds the threshold, −1 if none does"),
        is_categorical=True,
    ),
    "token_divergence": Field(("step", "token"), Message("divergence of every token, for a single text")),
    "token_first_step": Field(
        ("token",),
        Message("first step at which the divergence of a token exceeds the threshold, −1 if none does"),
        is_categorical=True,
    ),
    "token_kl": Field(("token",), Message("KL divergence at every token, for a single text"), unit="nats"),
    "top_tokens_first": Field(
        ("text", "k"), Message("ids of the first model's likeliest tokens after the text"), is_categorical=True
    ),
    "top_tokens_second": Field(
        ("text", "k"), Message("ids of the second model's likeliest tokens after the text"), is_categorical=True
    ),
    "top_probabilities_first": Field(("text", "k"), Message("their probabilities in the first model")),
    "top_probabilities_second": Field(("text", "k"), Message("their probabilities in the second model")),
    "text_kl": Field(("text",), Message("KL divergence, mean over the tokens of each text"), unit="nats"),
    "text_loss_difference": Field(
        ("text",), Message("loss of the second model minus that of the first, per token of each text"), unit="nats"
    ),
    "layer_similarity": Field(("layer", "other_layer"), Message("RSA of the clouds after every layer of both models")),
    "matched_layer": Field(("layer",), Message("the most similar layer of the other model"), is_categorical=True),
    "same_depth_layer": Field(
        ("layer",), Message("the layer of the other model at the same relative depth"), is_categorical=True
    ),
    "matched_head_layer": Field(
        HEAD, Message("the layer of the most similar head of the other model"), is_categorical=True
    ),
    "matched_head": Field(HEAD, Message("the number of that head in its layer"), is_categorical=True),
    "symmetry_first": Field(HEAD, Message("symmetry tr(MM)/tr(MMᵀ) of every M of the first model")),
    "symmetry_second": Field(("other_layer", "other_head"), Message("symmetry of every M of the second model")),
    "stable_rank_M_first": Field(HEAD, Message("stable rank of every M of the first model")),
    "stable_rank_M_second": Field(("other_layer", "other_head"), Message("stable rank of every M of the second model")),
    "stable_rank_F_first": Field(HEAD, Message("stable rank of every F of the first model")),
    "stable_rank_F_second": Field(("other_layer", "other_head"), Message("stable rank of every F of the second model")),
}
FIELDS: dict[str, Field] = (
    WEIGHT_FIELDS
    | OTHER_FIELDS
    | {name: field for mean, mean_field in OF_TEXTS.items() for name, field in with_interval(mean, mean_field).items()}
)
