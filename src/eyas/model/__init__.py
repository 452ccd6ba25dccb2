"""Networks and their checkpoints: gpt-oss, the EAGLE-3 head, MXFP4. No requests, no scheduling."""
