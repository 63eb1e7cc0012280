"""
The links of the README files and of llms.txt also work on the page of an installed package.
"""

from __future__ import annotations

import pytest

from helpers.doc_pages import ROOT, broken_links

READMES = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "docs" / "llms.txt"]
READMES += sorted(ROOT.glob("plugins/*/README.md"))
OURS = "https://github.com/jetsync/jetsync/blob/main/"


@pytest.mark.parametrize("readme", READMES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_links_of_a_readme(readme):
    """
    Each link is a whole address. Those into the repository name a file that exists.
    """
    assert broken_links(readme.read_text("utf-8")) == []


@pytest.mark.parametrize("link", ["LICENSE", "docs/index.md", f"{OURS}docs/gone.md", "http://a.b"])
def test_broken_links_are_found(link):
    """
    The test above finds relative links, and links to files that do not exist.
    """
    assert broken_links(f"Read [this]({link}) or [that]({OURS}LICENSE).") == [link]
    assert broken_links(f'<a href="{link}">') == [link]


def test_llms_txt_lists_the_pages_for_users():
    """
    It names each how-to page, and each page for people who come from another library.
    """
    text = (ROOT / "docs" / "llms.txt").read_text("utf-8")
    pages = [*ROOT.glob("docs/howto/*.md"), *ROOT.glob("docs/coming-from/*.md")]
    names = {page.relative_to(ROOT).as_posix() for page in pages if page.stem != "index"}

    assert [name for name in sorted(names) if f"{OURS}{name})" not in text] == []


def test_the_security_policy_is_linked():
    """
    The start page links the policy, which links the private report of the host.
    """
    policy = (ROOT / "SECURITY.md").read_text("utf-8")

    assert "https://github.com/jetsync/jetsync/security/advisories/new" in policy
    assert "SECURITY.md" in (ROOT / "docs" / "index.md").read_text("utf-8")
    assert "SECURITY.md" in (ROOT / "MANIFEST.in").read_text("utf-8")
