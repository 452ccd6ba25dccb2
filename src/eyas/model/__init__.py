"""What the networks compute: gpt-oss, the EAGLE-3 head, MXFP4, checkpoints. No requests, no scheduling."""
