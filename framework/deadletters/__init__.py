"""Dead letters after they were stored: read, chosen, replayed, purged. How they are written is ``middleware.dead_letter``'s."""

from framework.deadletters.letter import Letter, Selection
from framework.deadletters.replay import Replay
from framework.deadletters.sweep import Sweep
from framework.deadletters.topics import CHANNEL, DeadTopic, find, meant, of_handler, topic_of

__all__ = ["CHANNEL", "DeadTopic", "Letter", "Replay", "Selection", "Sweep", "find", "meant", "of_handler", "topic_of"]
