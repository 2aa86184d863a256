"""The device of the test models: the CPU, or RHEOSCOPE_TEST_DEVICE.

`pytest -m gpu` runs the same tests on the GPU; "away" is the fake device of `elsewhere.py`.
"""

import os

import torch

PLACE = torch.device({"away": "meta"}.get(name := os.environ.get("RHEOSCOPE_TEST_DEVICE", "cpu"), name))
