"""The theory bench: particles under attention without trained weights, each number beside the one that theory gives."""
