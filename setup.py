"""What a build adds to the package: the commit, and the files that an image is built from. The rest: pyproject.toml.

A checkout has neither inside the package: there git is asked, and the files lie beside this one.
"""

import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "src"))

from eyas.base.commit import FILE_NAME, commit  # noqa: E402
from eyas.recipes.engines.eyas_image import NAMES, PACKAGED  # noqa: E402


def write_commit(package: Path) -> None:
    """In a package whose commit is known, be it from git or from the source distribution that is built."""
    name = commit()
    if name is not None:
        (package / FILE_NAME).write_text(f"{name}\n", encoding="ascii")


class BuildPackage(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            package = Path(self.build_lib) / "eyas"
            write_commit(package)
            (package / PACKAGED).mkdir(parents=True, exist_ok=True)
            for name in NAMES:
                shutil.copyfile(ROOT / name, package / PACKAGED / name)


class SourceDistribution(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir) / "src" / "eyas")


setup(cmdclass={"build_py": BuildPackage, "sdist": SourceDistribution})
