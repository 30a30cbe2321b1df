from __future__ import annotations

import argparse

from lopa.runtime.options import DecodeOptions
from lopa.runtime.strategies.registry import declared
from lopa.tools.decode_flags import add_decode_flags, decode_options


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_decode_flags(parser)
    return parser


def test_every_setting_has_a_flag_and_no_flag_is_without_a_setting() -> None:
    flags = {action.dest for action in make_parser()._actions} - {"help", "settings"}
    assert flags == set(declared())


def test_without_flags_the_defaults_hold() -> None:
    assert decode_options(make_parser().parse_args([])) == DecodeOptions()


def test_help_names_the_defaults_in_force() -> None:
    shown = {action.dest: action.help or "" for action in make_parser()._actions}
    for name, entries in declared().items():
        for setting in (entry.setting for entry in entries):
            default = setting.shown if setting.default is None else setting.default
            if isinstance(default, float):
                default = f"{default:g}"
            if isinstance(default, bool):
                default = "on" if default else "off"
            texts = (f"(default {default})", f"(default: {default})", f"{default} (default)")
            assert any(text in shown[name] for text in texts), name
