"""The chapters, in the order they are shown."""

from vramkit.demo import card, overlap, race

CHAPTERS = (card.CHAPTER, overlap.CHAPTER, race.CHAPTER)
