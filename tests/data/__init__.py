"""Data that several tests read."""
