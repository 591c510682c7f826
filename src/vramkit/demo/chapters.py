"""The chapters, in the order they are shown."""

from vramkit.demo import card, overlap, pool, race

CHAPTERS = (card.CHAPTER, overlap.CHAPTER, pool.CHAPTER, race.CHAPTER)
