"""The command line `tinyzero`: one file per group of commands, each a thin layer over Python calls elsewhere."""

from tinyzero_sdk.cli.app import main

__all__ = ["main"]
