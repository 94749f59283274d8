"""Run folders: checkpoints, resume, sessions."""
