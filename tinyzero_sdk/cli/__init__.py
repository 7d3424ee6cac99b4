"""The command line `tinyzero`. One file per group of commands; everything it does is a Python call too."""

from tinyzero_sdk.cli.app import main

__all__ = ["main"]
