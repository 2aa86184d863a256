"""The analysis `attention_patching`: its computation, its picture and its words."""
