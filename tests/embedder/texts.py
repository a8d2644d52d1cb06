"""Two hundred texts of mixed length and language for the parity tests; made, not stored.

From one word to just below the limit of 256 tokens.
"""

import random

SENTENCES = [
    "The capital of France is Paris, and the Seine flows through it.",
    "Die Straßenbahn fährt heute wegen Bauarbeiten nur bis zum Hauptbahnhof.",
    "Le café était fermé, nous avons donc marché jusqu'à la rivière.",
    "El modelo convierte cada frase en un vector de longitud uno.",
    "Быстрая коричневая лиса перепрыгивает через ленивую собаку.",
    "今日は天気がいいから散歩しましょう。",
    "机器学习模型把文本变成向量。",
    "भारत एक विशाल देश है।",
    "الطقس جميل اليوم في المدينة القديمة.",
    "def add(a: int, b: int) -> int: return a + b  # 3.14159",
    "Prices rose by 4.2% in 2023 — the fastest since 1990!",
    "🙂 emoji, tabs\tand\nnew lines; ﬁgure, naïve, Ångström",
]
WORDS = " ".join(SENTENCES[:4]).split()


def mixed_texts(count: int = 200, seed: int = 3) -> list[str]:
    """Texts of 1 to about 250 tokens."""
    rng = random.Random(seed)
    texts = [rng.choice(WORDS) for _ in range(count // 4)]
    texts += [rng.choice(SENTENCES) for _ in range(count // 2)]
    while len(texts) < count:
        texts.append(" ".join(rng.choice(["river", "vector", "a", "model", "of"]) for _ in range(rng.randint(20, 250))))
    rng.shuffle(texts)
    return texts
