"""The commands `train`, `warmstart`, `recipes`, `plan` and `doctor`: options and output, but no work. See plugin.py."""
