"""The mock model's vocabulary: the words that its texts and strings are made of."""

WORDS = (
    "amber", "bridge", "cedar", "circle", "copper", "dawn", "delta", "ember", "engine", "fern", "field", "forest",
    "garden", "glass", "grain", "harbor", "hollow", "island", "jasper", "kettle", "lantern", "ledger", "linen",
    "marble", "meadow", "mirror", "morning", "needle", "north", "ocean", "olive", "orchard", "paper", "pebble",
    "pine", "quiet", "raven", "river", "saddle", "silver", "simple", "spring", "stone", "summer", "thread", "timber",
    "tower", "valley", "velvet", "willow", "window", "winter",
)  # fmt: skip
