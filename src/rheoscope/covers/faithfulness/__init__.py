"""The analysis `faithfulness`: its computation, its picture and its words."""
