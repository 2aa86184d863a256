"""The clouds that a card measures: that of a model of one text, or the source and the target of an encoder-decoder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rheoscope.catalogue import all_claims
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_percent
from rheoscope.report.card_media import batches_of_one_size
from rheoscope.report.text_pairs import TextPair
from rheoscope.running.encoder_decoder import EncoderDecoder
from rheoscope.running.lost_text import count_characters, lost_characters
from rheoscope.running.pair_sides import SOURCE, TARGET, PairSide, source_model, targets_model
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.claim import Claim, ClaimPart, ClaimSample
from rheoscope.space.model import Text
from rheoscope.space.traces import Traces

TEXTS_PER_BATCH = {"cpu": 16, "cuda": 96}
"""A GPU waits for the start of each operation, so it reads the texts of a card at once."""
MAX_LOST_SHARE = 0.5
"""The largest share of the characters of a word list that a tokenizer may lose: that of reactions reads no English."""
SIDE_NAMES = {SOURCE: Message("Source"), TARGET: Message("Target")}
"""How the rows of a card name the two sides of an encoder-decoder."""


@dataclass(frozen=True, eq=False)
class CardCloud:
    """A cloud of a card: the model whose cloud it is, its texts, and the side of an encoder-decoder, or an empty name."""

    model: RunnableModel
    texts: Sequence[Text]
    side: str = ""

    def traces(self) -> tuple[Traces, ...]:
        """The texts in batches, each as one forward pass."""
        return trace_batches(self.model, self.texts)

    def sample(
        self,
        traces: tuple[Traces, ...],
        draws: int,
        seed: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> ClaimSample:
        """What a claim is measured on."""
        return ClaimSample(self.model, traces, draws, seed, progress, self.model.for_texts)

    def claims(self, claims: Sequence[Claim]) -> list[Claim]:
        """These claims as rows of the card."""
        return [claim_about(claim, self.side) for claim in claims]

    def in_model(self, model: RunnableModel) -> "CardCloud":
        """The same cloud in another model of the same architecture."""
        if isinstance(self.model, PairSide):
            assert isinstance(model, EncoderDecoder), "an untrained encoder-decoder is one too"
            model = self.model.in_pair(model)
        return replace(self, model=model)

    def reason_without(self, claim: Claim) -> RheoscopeError | None:
        """Why this cloud cannot have a claim, before it is measured. None if it may have it."""
        if claim.needs_words and not self.model.view.reads_tokens:
            return RheoscopeError(Message("its model reads no words"))
        if claim.word_file is None:
            return None
        if self.side == TARGET:
            return RheoscopeError(
                Message("its word lists have no sources, and a decoder reads a source with every target"),
                Advice("rs.card(rs.source_model(model))"),
            )
        lost = lost_share(self.model, claim.word_file.read_text(encoding="utf-8"))
        if lost <= MAX_LOST_SHARE:
            return None
        return RheoscopeError(
            Message(
                "its words are English, and the tokenizer loses {share} of their characters", share=format_percent(lost)
            )
        )


def lost_share(model: RunnableModel, text: str) -> float:
    """The share of the characters of a text that the tokenizer cannot represent. 0 for a tokenizer that does not say."""
    spans = None if model.tokenizer is None else model.token_spans(text)
    return 0.0 if spans is None else len(lost_characters(text, spans)) / max(1, count_characters(text))


def clouds_of(model: RunnableModel, texts: Sequence[Text | TextPair]) -> list[CardCloud]:
    """The clouds of a card over these texts."""
    if not isinstance(model, EncoderDecoder):
        return [CardCloud(model, texts)]  # type: ignore[arg-type]
    pairs = [item for item in texts if isinstance(item, TextPair)]
    source_ids, encoder = [model.source_ids(pair.source) for pair in pairs], source_model(model)
    sources = [pair.source for pair in pairs] if encoder.view.reads_tokens else source_ids  # features of files
    return [
        CardCloud(encoder, sources, SOURCE),
        CardCloud(targets_model(model, source_ids), [pair.target for pair in pairs], TARGET),
    ]


def trace_batches(model: RunnableModel, texts: Sequence[Text]) -> tuple[Traces, ...]:
    """The texts in batches, each as one forward pass."""
    size = TEXTS_PER_BATCH.get(model.device.type, TEXTS_PER_BATCH["cpu"])
    if model.view.reads_tokens:
        batches = [range(start, min(start + size, len(texts))) for start in range(0, len(texts), size)]
    else:
        batches = batches_of_one_size(texts, size)  # type: ignore[arg-type]
    return tuple(model.for_texts(batch).trace([texts[text] for text in batch]) for batch in batches)


def claim_about(claim: Claim, side: str) -> Claim:
    """A claim about one side of an encoder-decoder. Its name and its statement name the side.

    >>> claim_about(all_claims()[0], "source").name
    'source.similarity'
    """
    if not side:
        return claim
    statement = Message("{side}: {claim}", side=SIDE_NAMES[side], claim=claim.statement)
    return replace(claim, name=f"{side}.{claim.name}", statement=statement)


def claims_by_name() -> Mapping[str, Claim]:
    """Every claim that a row of a card can be about, by the name of the row."""
    rows = [claim_about(claim, side) for side in ("", *SIDE_NAMES) for claim in all_claims()]
    return {claim.name: claim for claim in rows}


def interval_name(claim: Claim, part: ClaimPart) -> str:
    """The name of an interval: that of its claim, and of its part where the claim has several."""
    return claim.name if len(claim.parts) == 1 else f"{claim.name}.{part.name}"


def side_of(claim: Claim) -> str:
    """The side of an encoder-decoder that a row is about. Empty for a model of one text.

    >>> side_of(claim_about(all_claims()[0], "target")), side_of(all_claims()[0])
    ('target', '')
    """
    side, _, name = claim.name.partition(".")
    return side if name else ""
