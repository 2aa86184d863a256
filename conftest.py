"""What can be collected: the kernels are written in Triton, which is there where torch is built for CUDA."""

from importlib.util import find_spec

KERNELS = ("additive", "entmax", "linear", "pointwise", "sinkhorn", "tiles", "weights")
collect_ignore = [] if find_spec("triton") else [f"src/rheoscope/attention/lower/kernels/{name}.py" for name in KERNELS]
