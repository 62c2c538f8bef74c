"""README opens with the numbers of the records, and with a figure made from them."""

import shutil

import synthetic
from PIL import Image

from meprop.study.figures.headline import headline
from meprop.study.report import readme
from meprop.study.report.claims import Evidence

README = (readme.ROOT / "README.md").read_text("utf-8")


def test_the_numbers_are_those_of_the_records():
    (block,) = readme.BLOCK.findall(README)
    assert block == readme.text(), "make notebooks writes it anew"


def test_the_figure_was_made_from_these_records():
    assert readme.carried() == readme.fingerprint(), "make notebooks draws it anew"
    assert f"]({readme.FIGURE})" in README.replace("\n", " ")


def test_writing_changes_nothing_else(tmp_path):
    (tmp_path / readme.FIGURE).parent.mkdir(parents=True)
    outdated = readme.BLOCK.sub("- old\n", README)
    (tmp_path / "README.md").write_text(outdated, "utf-8")
    readme.write(tmp_path)
    assert (tmp_path / "README.md").read_text("utf-8") == README
    assert readme.carried(tmp_path / readme.FIGURE) == readme.fingerprint()
    with Image.open(tmp_path / readme.FIGURE) as image:
        assert image.width > 600
    shutil.rmtree(tmp_path)


def test_other_records_are_another_figure():
    fewer = synthetic.results("paper", lambda run: None)
    more = synthetic.results("paper", lambda run: 99.0, seeds=2)
    prints = {readme.fingerprint(Evidence(paper=results)) for results in (fewer, more)}
    assert len(prints) == 2
    for results in (fewer, more):
        assert headline(Evidence(paper=results)) is not None
