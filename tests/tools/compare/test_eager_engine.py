"""The checkpoint in eager torch decodes like the bundle that was built from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lopa.export.source import open_source
from lopa.runtime.contract import ContractError, Instance
from lopa.runtime.engines.single import SingleState
from lopa.runtime.manifest import read_bundle
from lopa.runtime.session import Session, open_bundle
from lopa.tools.compare.eager_engine import EagerEngine, load_module

from .conftest import PROMPTS


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Path, tiny_bundle: Path) -> EagerEngine:
    module = load_module(open_source(tiny_checkpoint, None, 16))
    return EagerEngine(module, read_bundle(tiny_bundle).instances)


@pytest.mark.parametrize("strategy", ["lopa", "d2f"])
def test_it_decodes_what_the_bundle_decodes(
    engine: EagerEngine, tiny_bundle: Path, strategy: str
) -> None:
    bundle = open_bundle(tiny_bundle, threads=1)
    eager = Session(tiny_bundle, bundle.manifest, SingleState(engine))
    for prompt in PROMPTS:
        one, two = (
            session.generate(
                prompt_ids=prompt, strategy=strategy, confidence=0.3, max_new_tokens=32
            )
            for session in (bundle, eager)
        )
        assert one.token_ids == two.token_ids
        assert (one.steps, one.forwards) == (two.steps, two.forwards)


def test_the_cache_keeps_its_contents_as_it_grows(engine: EagerEngine) -> None:
    engine.reset()
    engine.inputs(Instance(1, 4, 8, 1))
    keys, values = (np.full_like(engine.cache()[0], fill) for fill in (1, 2))
    engine.load_cache(keys, values)
    engine.inputs(Instance(1, 4, 16, 1))
    for array, fill in zip(engine.cache(), (1, 2), strict=True):
        assert array.shape[2] == 16
        assert (array[:, :, :8] == fill).all()
        assert not array[:, :, 8:].any()


def test_it_refuses_what_the_bundle_would(engine: EagerEngine) -> None:
    with pytest.raises(ContractError, match="no instance holds a step of b9-w4-c8-r1"):
        engine.shape_for(Instance(9, 4, 8, 1))
    engine.reset()
    with pytest.raises(ContractError, match="no step has run"):
        engine.window()
    assert engine.status().library.startswith("torch 2.")
