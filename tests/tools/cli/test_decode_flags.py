from __future__ import annotations

import argparse
from dataclasses import fields

from lopa.runtime.options import DecodeOptions
from lopa.tools.decode_flags import add_decode_flags, decode_options


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_decode_flags(parser)
    return parser


def test_every_setting_has_a_flag_and_no_flag_is_without_a_setting() -> None:
    flags = {action.dest for action in make_parser()._actions} - {"help", "settings"}
    assert flags == {field.name for field in fields(DecodeOptions)}


def test_without_flags_the_defaults_hold() -> None:
    assert decode_options(make_parser().parse_args([])) == DecodeOptions()


def test_help_names_the_defaults_in_force() -> None:
    shown = {action.dest: action.help or "" for action in make_parser()._actions}
    for field in fields(DecodeOptions):
        if field.default is None or isinstance(field.default, bool):
            continue
        default = f"{field.default:g}" if isinstance(field.default, float) else field.default
        assert any(
            text in shown[field.name] for text in (f"(default {default})", f"{default} (default)")
        ), field.name
