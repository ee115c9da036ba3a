"""Bandwidth and capacity of one device scaled separately, on chats and on long contexts.

Prints where each stops helping and which resource takes over. From the repository's root:
``python examples/next-gen-hbm/scale.py``; further words are options of ``membound explain`` (``--format csv``).
"""

from __future__ import annotations

import sys
from pathlib import Path

from membound.app.cli import main

LOADS = ("chat.yaml", "long-context.yaml")

if __name__ == "__main__":
    for load in LOADS:
        scenario = str(Path(__file__).with_name(load))
        words = ["--scale", "hbm_bandwidth", "--scale", "hbm_capacity", "--requests", "1500"]
        if code := main(["explain", scenario, *words, *sys.argv[1:]]):
            sys.exit(code)
        print()
