"""The analysis `attention_patching`: its computation and its picture."""
