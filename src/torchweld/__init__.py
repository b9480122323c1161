"""torchweld: kernel fusion for PyTorch that is exact and explained."""
