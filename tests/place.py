"""Where the models of the tests stand: on the CPU, or where RHEOSCOPE_TEST_DEVICE says.

`pytest -m gpu` puts them on the GPU, so that the batteries of laws run there as they are; "away" is the device of `elsewhere.py`.
"""

import os

import torch

PLACE = torch.device({"away": "meta"}.get(name := os.environ.get("RHEOSCOPE_TEST_DEVICE", "cpu"), name))
