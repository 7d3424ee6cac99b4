"""Runs and scored files as a page to read: one HTML file (`tinyzero report`), or served while a run goes on (`view`).

It reads files only and needs no trainer. `static/` has the page, whose charts uPlot draws (MIT; its licence is there).
"""
