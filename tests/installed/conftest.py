"""The wheel, built and installed once; the environments that the tests run in; a broker's store."""

from pathlib import Path

import pytest

from tests.conftest import ARCHIVES, Golden, unpack
from tests.support.environments import REPOSITORY, Environment, build_wheel, checkout, install


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of the checkout."""
    return build_wheel(REPOSITORY, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Install the wheel."""
    return install(wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="session")
def compiled(installed: Environment) -> Environment:
    """Compile the kernels of the installed wheel, as the image does."""
    installed.run(installed.python, "-m", "reput.compile_kernels")
    return installed


@pytest.fixture(scope="session", params=["checkout", "wheel"])
def environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """Return the checkout, then the installed wheel."""
    if request.param == "checkout":
        return checkout(tmp_path_factory.mktemp("checkout"))
    compiled: Environment = request.getfixturevalue("compiled")
    return compiled


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """Unpack a store of five topics, which a broker wrote."""
    (archive,) = (path for path in ARCHIVES if path.name == "g1.tar.xz")
    return unpack(archive, tmp_path_factory.mktemp("broker"))
