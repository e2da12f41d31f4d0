"""What training leaves beside a checkpoint, so that its step can be replayed and measured."""
