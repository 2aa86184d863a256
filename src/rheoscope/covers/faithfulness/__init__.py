"""The analysis `faithfulness`: its computation and its picture."""
