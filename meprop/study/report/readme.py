"""README's opening: one figure and the headline numbers, from the records.

`make notebooks` writes both; a test compares them with the records.
"""

from __future__ import annotations

import hashlib
import re
from io import BytesIO
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from meprop.study.experiments import ROOT
from meprop.study.figures import set_style
from meprop.study.figures.headline import headline
from meprop.study.report.claims import Evidence, ledger
from meprop.study.report.claims.showing import in_words
from meprop.study.report.headline import markdown

FIGURE = Path("book/_static/headline.png")
BLOCK = re.compile(
    r"(?<=<!-- make notebooks writes this -->\n).*?(?=<!-- end of it -->)", re.DOTALL
)


def text() -> str:
    """The headline numbers and the tally of the ledger, in Markdown."""
    return f"{markdown()}\n- Do the paper's claims hold up? {in_words(ledger())}\n"


def fingerprint(evidence: Evidence | None = None) -> str:
    """SHA-256 of what the figure shows, which its file carries."""
    evidence = evidence or Evidence()
    shown = [text(), *(sorted(evidence.paper.records)), *(str(row) for row in evidence.bench)]
    return hashlib.sha256("\n".join(shown).encode()).hexdigest()


def carried(path: Path = ROOT / FIGURE) -> str | None:
    """The fingerprint in the committed figure."""
    with Image.open(path) as image:
        return image.info.get("records")


def write(root: Path = ROOT) -> None:
    """Bring README and its figure up to date."""
    set_style()
    about = PngInfo()
    about.add_text("records", fingerprint())
    packed = BytesIO()
    Image.open(BytesIO(headline().small_png())).save(packed, "png", optimize=True, pnginfo=about)
    (root / FIGURE).write_bytes(packed.getvalue())
    readme = root / "README.md"
    readme.write_text(BLOCK.sub(lambda _: text(), readme.read_text(encoding="utf-8")), "utf-8")
