"""How work is distributed: who shares it, sums over processes, tensors held in parts."""
