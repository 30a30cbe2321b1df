"""Bundles as models of lm-evaluation-harness; importing this module registers them as `lopa`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NoReturn

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from ...runtime.contract import LopaError
from .completion import CompletionModel

LOG = logging.getLogger("lm_eval.lopa")  # the harness shows what is below its own name


@register_model("lopa")
class LopaLM(LM):  # type: ignore[misc]  # the harness has no types
    """A bundle as a model of the harness; it generates and has no likelihoods.

    Arguments are `bundle`, `provider`, `threads`, `verify` and every decode setting. Prompts are
    encoded as they come: `--apply_chat_template` puts them into the bundle's chat template.
    Requests are decoded one by one, in order, whatever the batch size; the harness's device is
    not looked at, as its default is a GPU.
    """

    def __init__(
        self,
        bundle: str = "",
        device: Any = None,
        batch_size: Any = None,
        max_batch_size: Any = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        if not bundle:
            raise LopaError("no bundle given, expected --model_args bundle=FOLDER")
        self.model = CompletionModel(str(bundle), **arguments)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Text of every request, in their order."""
        plans = self.model.plan([request.args for request in requests])
        texts = []
        for request, plan in zip(requests, tqdm(plans, disable=disable_tqdm), strict=True):
            texts.append(self.model.complete(plan))
            self.cache_hook.add_partial("generate_until", request.args, texts[-1])
        LOG.info(
            "%(requests)d requests, %(tokens)d tokens, %(steps)d steps, TPF %(tpf).2f, "
            "%(tokens_per_second).0f tokens/s",
            self.model.record,
        )
        if self.model.shortened:
            LOG.warning(
                "%d requests asked for more tokens than the bundle's context holds and got what "
                "fits; lopa build --context makes it larger",
                self.model.shortened,
            )
        return texts

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> NoReturn:
        """Not offered: raises LopaError."""
        raise _no_likelihood("loglikelihood")

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> NoReturn:
        """Not offered: raises LopaError."""
        raise _no_likelihood("loglikelihood_rolling")

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Messages under the bundle's chat template; without the prompt the last one is open."""
        return self.model.render(chat_history, continued=not add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Source of the bundle's chat template; it has one, so a name is not looked at."""
        return self.model.session.codec.template if chat_template else None

    @property
    def tokenizer_name(self) -> str:
        """Names the tokenizer and chat template in the harness's request cache."""
        session = self.model.session
        return f"{session.folder.resolve().name}-{session.manifest.source.fingerprint[:12]}"

    def get_model_info(self) -> dict[str, Any]:
        """What the harness adds to the `config` of its results: bundle, settings, steps, TPF."""
        return {"lopa": self.model.record}


def _no_likelihood(kind: str) -> LopaError:
    return LopaError(
        f"the task asks for {kind}, which lopa does not offer: a diffusion language model fills "
        "positions in any order and has no left-to-right likelihood; choose a generate_until task"
    )
