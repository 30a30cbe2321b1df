"""Trace the step module into one ONNX graph with symbolic instance dimensions.

Parameters are traced as zero-stride placeholders, so a graph of any size is made without its
weights; they are written afterwards, one at a time, into a single external data file.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

import onnx_ir as ir
import torch

from ..runtime.contract import INPUT_NAMES, OUTPUT_NAMES, Instance, input_specs
from .backbone import StepModule
from .spec import DecoderSpec, parameter_shapes

OPSET = 18  # Ascend's ONNX parser stops here
TORCH_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_EXAMPLE = Instance(branches=3, window=7, context=11, rows=5)

# Dimensions of the graph's inputs and outputs, by contract position; ints are filled in per model.
_ROWS = "branches*window"
_INPUT_DIMS: tuple[tuple[str | int, ...], ...] = (
    ("branches", "window"),
    ("branches", "window"),
    (_ROWS, _ROWS),
    ("context",),
    (0, 1, "context", 3),
    (0, 1, "context", 3),
    ("rows",),
    (0,),
)
_OUTPUT_DIMS: tuple[tuple[str | int, ...], ...] = (
    ("rows", 1),
    ("rows", 1),
    ("rows",),
    (0, 1, _ROWS, 3),
    (0, 1, _ROWS, 3),
)


def trace(spec: DecoderSpec, precision: str) -> ir.Model:
    """Return the graph of `spec`; parameters have their canonical names and placeholder data.

    The body only ever reshapes flat rows, so the graph holds no Shape node and every instance is
    made from it by fixing the dimensions of the inputs.
    """
    dtype = TORCH_DTYPES[precision]
    dynamic = tuple(
        {axis: torch.export.Dim.AUTO for axis, dim in enumerate(dims) if isinstance(dim, str)}
        for dims in _INPUT_DIMS
    )
    info = spec.info
    model_dtype = str(dtype).removeprefix("torch.")
    specs = input_specs(_EXAMPLE, info.layers, info.kv_heads, info.head_dim, model_dtype)
    with torch.device("meta"):
        module = StepModule(spec, dtype).eval()
    _fill_with_placeholders(module)
    with _quiet():
        example = tuple(torch.zeros(item.shape, dtype=getattr(torch, item.dtype)) for item in specs)
        program = torch.onnx.export(
            module,
            example,
            input_names=list(INPUT_NAMES),
            output_names=list(OUTPUT_NAMES),
            dynamic_shapes=dynamic,
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            optimize=True,
        )
    assert program is not None
    model = program.model
    lost = parameter_shapes(spec).keys() - model.graph.initializers.keys()
    assert not lost, f"the exporter folded parameters away: {sorted(lost)}"
    _name_dimensions(model)
    model.producer_name, model.producer_version = "lopa", None
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.graph.name = "step"
    return model


def _name_dimensions(model: ir.Model) -> None:
    """Give inputs and outputs the contract's symbolic dimensions; drop inferred inner shapes."""
    for values, all_dims in (
        (model.graph.inputs, _INPUT_DIMS),
        (model.graph.outputs, _OUTPUT_DIMS),
    ):
        for value, dims in zip(values, all_dims, strict=True):
            shape = value.shape
            assert shape is not None
            assert len(shape) == len(dims)
            value.shape = ir.Shape(
                [dim if isinstance(dim, str) else shape[axis] for axis, dim in enumerate(dims)]
            )
    kept = {id(value) for value in (*model.graph.inputs, *model.graph.outputs)}
    for node in model.graph:
        node.metadata_props.clear()  # the exporter records source paths there
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
            if id(value) not in kept:
                value.shape = value.type = None


def _fill_with_placeholders(module: torch.nn.Module) -> None:
    """Give every parameter one element of storage, expanded to its shape.

    The values are all different and neutral to no operation: equal or neutral constants would be
    merged or folded away by the exporter's optimiser.
    """
    value = 3
    for owner in module.modules():
        for name, parameter in list(owner.named_parameters(recurse=False)):
            blank = torch.full((), value, dtype=parameter.dtype).expand(parameter.shape)
            setattr(owner, name, torch.nn.Parameter(blank, requires_grad=False))
            value += 1


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hold back the exporter's progress lines and warnings about optional packages."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
