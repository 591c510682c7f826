"""The chapters, in the order they are shown."""

from vramkit.demo import card, overlap, pool, race, weights

CHAPTERS = (card.CHAPTER, overlap.CHAPTER, weights.CHAPTER, pool.CHAPTER, race.CHAPTER)
