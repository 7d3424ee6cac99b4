"""Tasks in other trainers: rewards for verl and TRL, and environments for verifiers. See docs/evaluation/adapters.md.

One module for each; importing it does not import the other library.
"""
