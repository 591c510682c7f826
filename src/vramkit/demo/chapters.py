"""The chapters, in the order they are shown."""

from vramkit.demo import card, lab, overlap, pool, race, sharing, weights

CHAPTERS = (
    card.CHAPTER,
    overlap.CHAPTER,
    weights.CHAPTER,
    pool.CHAPTER,
    sharing.CHAPTER,
    lab.CHAPTER,
    race.CHAPTER,
)
