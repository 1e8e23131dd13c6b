"""A stand-in for a sentence encoder that takes no time: the sum of a text's words, each a random direction.

Follows search_index.Encoder.
"""

import hashlib

import numpy as np


class WordEncoder:
    """Equal words, equal vectors, whatever the order; `texts` is all that was ever asked of it."""

    name, pooler_name, max_length = "words", "sum", 99

    def __init__(self, dimension=16, seed=0):
        self.dimension, self.seed, self.texts = dimension, seed, []

    @property
    def fingerprint(self):
        return hashlib.sha256(f"{self.dimension} {self.seed}".encode()).hexdigest()

    def encode(self, texts, batch_size=32, normalize=True, progress=None):
        self.texts += texts
        vectors = np.array([self._sum(text) for text in texts], dtype=np.float32).reshape(len(texts), self.dimension)
        if progress is not None:
            for start in range(0, len(texts), batch_size):
                progress(len(texts[start : start + batch_size]))
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalize else vectors

    def _sum(self, text):
        words = [hashlib.sha256(f"{self.seed} {word}".encode()).digest() for word in text.split()]
        return sum(np.random.default_rng(list(word)).standard_normal(self.dimension) for word in words)
