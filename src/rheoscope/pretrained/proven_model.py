"""A network as a model whose View is proved: described from the stored tape of its type, and recorded anew if that proves wrong."""

from typing import Any

from rheoscope.pretrained.build_view import describe_model
from rheoscope.pretrained.certificate import certify
from rheoscope.pretrained.checkpoint import silence_libraries
from rheoscope.pretrained.families import is_found
from rheoscope.pretrained.finder.tape_file import TapeFile, tape_file
from rheoscope.pretrained.hf_model import Pretrained
from rheoscope.pretrained.unsupported_networks import refuse_undescribed
from rheoscope.running.certificate import Certificate
from rheoscope.running.eval_mode import eval_mode
from rheoscope.running.loading_stages import Progress
from rheoscope.running.stored_tensor import deferring


def proven_model(
    network: Any, tokenizer: Any, name: str, hash_progress: Progress, proof_progress: Progress, is_as_written: bool
) -> tuple[Pretrained, Certificate]:
    """The model of a network, and the certificate of its View. Raises if they differ.

    Only networks that are as transformers wrote them (`is_as_written`) have a stored tape: a caller may have changed theirs.
    """

    def describe_and_certify(tapes: TapeFile | None) -> tuple[Pretrained, Certificate]:
        with deferring():
            model = describe_model(network, tokenizer, name, hash_progress, tapes)
        with eval_mode(network):  # once, instead of in every function of the description
            return model, certify(model, proof_progress)

    with silence_libraries(), refuse_undescribed(network):
        tapes = tape_file(network) if is_as_written and is_found(network) else None
        try:
            return describe_and_certify(tapes)
        except Exception:
            if tapes is None or not tapes.discard():
                raise
        return describe_and_certify(tapes)
