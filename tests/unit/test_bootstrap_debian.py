"""Debian's source without touching the machine's package lists. Owner: pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bootstrap_fakes import script
from tpc_server.bootstrap import debian, download, source
from tpc_server.bootstrap.debian import Mirror, mirrors, write_configuration
from tpc_server.bootstrap.progress import BootstrapError, StepFailed

KEY = "/usr/share/keyrings/debian-archive-keyring.gpg"
ONE_LINE = f"""\
# deb http://commented.example/deb bookworm main
deb [arch=amd64 signed-by={KEY}] http://mirror.example/deb/ bookworm main contrib # mine
deb-src http://mirror.example/deb bookworm-updates main
deb http://security.example/security bookworm-security main
deb [trusted=yes] file:/srv/local ./
deb https://packages.example/apt cloud-bookworm main
deb http://mirror.example/deb bookworm contrib
"""
DEB822 = f"""\
Types: deb
# a comment in between
URIs: http://one.example/deb http://two.example/deb/
Suites: trixie trixie-updates
Components: main
Signed-By: {KEY}

Types: deb
URIs: http://off.example/deb
Suites: trixie
Components: main
Enabled: no

Types: deb
URIs: https://node.example/node
Suites: nodistro
Components: main

Types: deb deb-src
URIs: http://keyed.example/deb
Suites:
 sid
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBF
 -----END PGP PUBLIC KEY BLOCK-----
"""
KEY_TEXT = "\n-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQINBF\n-----END PGP PUBLIC KEY BLOCK-----"


def apt_dir(tmp_path: Path, one_line: str = "", deb822: str = "") -> Path:
    folder = tmp_path / "apt"
    (folder / "sources.list.d").mkdir(parents=True)
    (folder / "sources.list").write_text(one_line)
    (folder / "sources.list.d" / "debian.sources").write_text(deb822)
    (folder / "sources.list.d" / "notes.txt").write_text("deb http://no.example/deb sid main")
    return folder


def test_one_line_sources(tmp_path: Path) -> None:
    assert mirrors(apt_dir(tmp_path, one_line=ONE_LINE)) == [
        Mirror("http://mirror.example/deb", KEY),
        Mirror("http://mirror.example/deb", ""),
    ]


def test_deb822_sources(tmp_path: Path) -> None:
    assert mirrors(apt_dir(tmp_path, deb822=DEB822)) == [
        Mirror("http://one.example/deb", KEY),
        Mirror("http://two.example/deb", KEY),
        Mirror("http://keyed.example/deb", KEY_TEXT),
    ]


def test_ubuntu_and_nothing_have_no_debian_mirror(tmp_path: Path) -> None:
    ubuntu = "deb http://archive.example/ubuntu noble main universe\n"
    assert mirrors(apt_dir(tmp_path, one_line=ubuntu)) == []
    assert mirrors(tmp_path / "nowhere") == []


def test_the_private_configuration_takes_only_connection_settings(tmp_path: Path) -> None:
    dump = (
        'Acquire::http::Proxy "http://proxy.example:3128";\n'
        'APT::Update::Post-Invoke-Success:: "touch /var/evil";\n'
        'Dir::State::Lists "/var/lib/apt/lists";\n'
    )
    config = write_configuration(tmp_path, Mirror("http://m.example/deb", KEY), "trixie", dump)
    text = config.read_text()
    assert "proxy.example" in text
    assert "evil" not in text and "/var/lib" not in text
    for name in ("Dir::State::Lists", "Dir::Cache", "Dir::Etc::SourceList"):
        assert f'{name} "{tmp_path}/' in text
    assert (tmp_path / "etc" / "sources.list").read_text() == (
        f"deb-src [signed-by={KEY}] http://m.example/deb trixie main\n"
    )


def test_a_key_inside_the_sources_becomes_a_file(tmp_path: Path) -> None:
    write_configuration(tmp_path, Mirror("http://m.example/deb", KEY_TEXT), "sid", "")
    key = tmp_path / "etc" / "key.asc"
    assert key.read_text().splitlines()[:2] == KEY_TEXT.splitlines()[1:3]
    assert f"[signed-by={key}]" in (tmp_path / "etc" / "sources.list").read_text()


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fake apt programs; they note their words and the source line they were given."""
    tools = tmp_path / "tools"
    script(tools / "apt-config", "echo 'Acquire::Retries \"7\";'")
    script(
        tools / "apt-get",
        f"""
echo "$@" >> {tmp_path}/words
suite=$(sed 's/.* \\(trixie\\|forky\\) main/\\1/' "$(dirname "$APT_CONFIG")/sources.list")
[ -e {tmp_path}/no-$suite ] && {{ echo "E: $suite does not answer"; exit 100; }}
[ "$1" = source ] && echo $suite > python3.13_3.13.$([ $suite = trixie ] && echo 5 || echo 15)\
.orig.tar.xz
exit 0""",
    )
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = apt_dir(tmp_path, deb822=DEB822)
    monkeypatch.setattr(debian, "mirrors", lambda: mirrors(folder))
    return tmp_path


def no_python_org(folder: Path) -> Path:
    raise StepFailed("source from python.org", "ended with status 1", "Name unknown", None)


def test_the_source_comes_from_trixie_then_forky(
    apt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_from_python_org", no_python_org)
    first = source.get_tarball()
    assert first.name == "Python-3.13.5.tar.xz" and first.read_text() == "trixie\n"
    assert source.version_of(first) == "3.13.5"
    words = (apt / "words").read_text().splitlines()
    assert words[0].startswith("update") and "--download-only" in words[1]
    # Kept: asking again fetches nothing.
    assert source.get_tarball() == first
    assert len((apt / "words").read_text().splitlines()) == 2

    first.unlink()
    (apt / "no-trixie").touch()
    second = source.get_tarball()
    assert second.name == "Python-3.13.15.tar.xz" and second.read_text() == "forky\n"
    assert [p.name for p in second.parent.iterdir()] == [second.name]

    second.unlink()
    (apt / "no-forky").touch()
    with pytest.raises(BootstrapError) as caught:
        source.get_tarball()
    text = str(caught.value)
    assert "python.org: Name unknown" in text
    assert "E: trixie does not answer" in text and "E: forky does not answer" in text


def test_python_org_comes_first_and_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(debian, "fetch_source", lambda *a: pytest.fail("asked Debian"))
    page = tmp_path / "Python-3.13.5.tar.xz"
    page.write_bytes(b"source")
    monkeypatch.setattr(source, "URL", f"file://{tmp_path}/Python-{{version}}.tar.xz")
    monkeypatch.setattr(source, "SHA256", __import__("hashlib").sha256(b"source").hexdigest())
    assert source.get_tarball().read_bytes() == b"source"


def test_a_download_with_the_wrong_checksum_is_not_kept(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_bytes(b"tampered")
    place = tmp_path / "place"
    assert "wrong checksum" in download.download(f"file://{page}", str(place), "0" * 64)
    assert not place.exists()
    assert download.download(f"file://{tmp_path}/none", str(place), "0" * 64)
