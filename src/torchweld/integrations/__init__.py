"""torchweld in the training loops of others: transformers, accelerate, Lightning.

Each function imports its library when it is called; none is a dependency.
"""

from torchweld.integrations.loops import accelerate_plugin, fuse_lightning, fuse_trainer

__all__ = ["accelerate_plugin", "fuse_lightning", "fuse_trainer"]
