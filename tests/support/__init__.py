"""What several tests share; no test stands here."""

from pathlib import Path

#: The checkout.
REPOSITORY = Path(__file__).resolve().parents[2]
