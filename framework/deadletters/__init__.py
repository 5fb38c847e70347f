"""Dead letters after they were stored: read, chosen, replayed, purged. How they are written is ``middleware.dead_letter``'s."""

from framework.deadletters.letter import Letter, Selection
from framework.deadletters.replay import Replay
from framework.deadletters.sweep import Sweep
from framework.deadletters.topics import CHANNEL, DeadTopic, find, meant, of_handler, topic_of
from framework.deadletters.values import as_dict, body_of, moment

__all__ = [
    "CHANNEL",
    "DeadTopic",
    "Letter",
    "Replay",
    "Selection",
    "Sweep",
    "as_dict",
    "body_of",
    "find",
    "meant",
    "moment",
    "of_handler",
    "topic_of",
]
