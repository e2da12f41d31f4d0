"""Checkpoints of other trainers, gathered into one that every verb reads.

gathered.py       a checkpoint whose tensors are whole, and the layouts that are known
distributed.py    torch.distributed.checkpoint; FSDP of accelerate and transformers
verl.py           verl's shards of FSDP 1 and 2
deepspeed.py      ZeRO stages 1 to 3, OpenRLHF among its users
write.py          safetensors, config and an optimizer state by name
"""
