"""Where reput is used from: the checkout, or its wheel in an environment with packages of its own.

That environment has the packages of the interpreter that runs the tests, so `make test-spark-4.2`
tests the wheel with the oldest Spark, but not the checkout. Before the wheel is installed, it has
packages that are named like the folders of the checkout.
"""

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FOLDERS = ("store", "checkpoints", "streaming")
OWN = "IS_A_PACKAGE_OF_THE_USER = True\n"
SECONDS = 240


@dataclass(frozen=True)
class Environment:
    """An interpreter that can import reput, in a working directory that has no part in it."""

    name: str
    python: Path
    reput: tuple[str, ...]  # the command line
    path: str  # PYTHONPATH
    directory: Path

    @property
    def variables(self) -> dict[str, str]:
        """The variables of its processes: Spark's workers run the same interpreter."""
        variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "REPUT_STORE")}
        if self.path:
            variables["PYTHONPATH"] = self.path
        return variables | {"PYSPARK_PYTHON": str(self.python), "SPARK_LOCAL_IP": "127.0.0.1"}

    def start(self, *command: object, **more: str) -> subprocess.Popen[str]:
        """Start a process whose output is read."""
        return subprocess.Popen(
            [str(word) for word in command],
            env=self.variables | more,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: object, **more: str) -> str:
        """Run a process that must exit with 0; return its output."""
        with self.start(*command, **more) as process:
            output, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, errors[-4000:]
        return output

    def run_reput(self, *arguments: object) -> str:
        """Run a command of reput that must exit with 0; return its output."""
        return self.run(*self.reput, *arguments)

    def run_python(self, program: str, *arguments: object, **more: str) -> str:
        """Run a program that must exit with 0; return its output."""
        return self.run(self.python, "-c", program, *arguments, **more)


def checkout(directory: Path) -> Environment:
    """Return the environment of the checkout."""
    python = Path(sys.executable)
    return Environment("checkout", python, (str(python), "-m", "reput"), str(REPOSITORY), directory)


def install(wheel: Path, directory: Path) -> Environment:
    """Make a virtual environment, and install a wheel in it."""
    venv, working = directory / "venv", directory / "working"
    working.mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = site_packages(venv)
    for name in FOLDERS:
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(OWN)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "--quiet"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True)
    # A folder named by a .pth file has its own .pth files ignored: that of the editable install.
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "packages.pth").write_text("\n".join(sorted(packages)) + "\n")
    return Environment(
        "wheel", venv / "bin" / "python", (str(venv / "bin" / "reput"),), "", working
    )


def site_packages(venv: Path) -> Path:
    """Return the folder of an environment's packages."""
    (site,) = venv.glob("lib/python3.*/site-packages")
    return site


def build_wheel(project: Path, directory: Path) -> Path:
    """Build the wheel of a project's directory."""
    return _build(project, directory, "wheel", "*.whl")


def build_sdist(project: Path, directory: Path) -> Path:
    """Build the source distribution of a project's directory."""
    return _build(project, directory, "sdist", "*.tar.gz")


def _build(project: Path, directory: Path, target: str, pattern: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(directory)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = directory.glob(pattern)
    return built
