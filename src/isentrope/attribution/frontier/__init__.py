"""What every step of one length could do to reward and entropy."""
