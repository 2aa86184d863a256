"""The analysis `readout`: its computation, its picture and its messages."""
