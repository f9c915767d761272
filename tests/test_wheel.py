"""The wheel, which the image installs: it holds every file of the packages."""

import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("store", "checkpoints", "streaming", "reput", "pyspark_reput")


def test_the_wheel_holds_the_code_the_templates_and_the_static_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if listed.returncode == 0:  # not in a source distribution
        assert set(listed.stdout.splitlines()) <= packed
    assert "reput/console/templates/base.html" in packed
    assert any(name.startswith("reput/console/static/") for name in packed)
