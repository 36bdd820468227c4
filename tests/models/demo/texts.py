"""The longer texts of the script."""

from __future__ import annotations

STORY = (
    "Every Friday the night train crossed the mountains with forty wagons of apples, letters and salt. "
    "Its driver was a quiet man named Tobias, and his only company was a brown dog who slept beside the warm boiler. "
    "Early in December snow fell for three days, and the signals along the pass went dark one after another. "
    "The stationmaster begged him to wait until spring. "
    '"The people in the valley have no salt and no news," said Tobias, "so we shall go slowly." '
    "Halfway up the hill the wheels began to slip. "
    "He spread sand on the rails with his own hands, walked back, and tried again. "
    "Near the summit a fallen pine blocked the line, and he had neither saw nor helper. "
    "The dog barked once, jumped into the drifts, and was gone. "
    "Tobias sat in the dark for an hour and counted the stars between the clouds. "
    "Then he heard bells. "
    "Up the white road came the dog, and behind it a farmer, two sisters with an axe, and a very old horse. "
    "They cut the pine into logs, fed the logs to the fire, and shared a pot of soup on the footplate. "
    "When the sun rose the train rolled down into the valley, six hours late and whistling all the way. "
    "Nobody complained. "
    "The baker hung a medal made of gingerbread around the neck of the dog, who ate it before the speech was over. "
    "Since that winter the timetable has carried a small line at the bottom of the page: arrives late, but arrives. "
    "The end."
)

ADDITION = (
    "A small function will do:\n\n"
    "```python\n"
    "def add(first, second):\n"
    '    """The sum of two numbers."""\n'
    "    return first + second\n"
    "```\n\n"
    "* `first` is one number\n"
    "* `second` is **the other**"
)

GREETINGS = "你好，世界！ Γειά σου, Κόσμε! 👋🌍🚂 — très à la carte, señor"  # noqa: RUF001

SHEEP = (
    'There were 17 sheep. "All but 9" means that 9 of them stay, so 17 - 9 = 8 sheep run away. '
    "To be sure: 8 + 9 = 17, and that is right."
)
