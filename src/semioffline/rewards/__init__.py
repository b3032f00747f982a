"""Rewards and metrics, one file each. A reward sees strings, never tensors."""
