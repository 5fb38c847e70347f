"""Durable storage of the embedded nsqd: one append-only log for all topics, and an index that can be rebuilt."""

from framework.nsqd.store.folder import FolderInUse, FolderUnusable
from framework.nsqd.store.log import Syncing
from framework.nsqd.store.record import Batch, Declaration, Declared
from framework.nsqd.store.state import ChannelSave, ChannelState, Correction, Declare, Entry, Retry, TopicSave, TopicState
from framework.nsqd.store.store import Store

__all__ = [
    "Batch", "ChannelSave", "ChannelState", "Correction", "Declaration", "Declare", "Declared", "Entry", "FolderInUse",
    "FolderUnusable",
    "Retry", "Store", "Syncing", "TopicSave", "TopicState",
]  # fmt: skip
