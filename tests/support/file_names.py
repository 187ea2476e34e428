"""Names of files in many scripts, as people call theirs."""

from __future__ import annotations

import unicodedata

NAMES = (
    "plain.bin",
    "Größe äöüß.bin",
    unicodedata.normalize("NFD", "é à ő.bin"),
    "Ταινία.bin",
    "фильм.bin",
    "סרט.bin",
    "فيلم ١٢٣.bin",
    "चलचित्र.bin",
    "திரைப்படம்.bin",
    "ภาพยนตร์.bin",
    "映画　影片.bin".replace("\u3000", "-"),
    "영화.bin",
    "ፊልም.bin",
    "ფილმი.bin",
    "🎬🦊.bin",
    "𠜎𝔉.bin",
    "per%20cent+plus&=?#;,'\"`$(x).bin",
    "many.dots..and...spaces  .bin",
    "x" * 100 + ".bin",
)
