"""Told that a model is announced, copies its weights from S3 to a shared file system, verified and published whole."""
