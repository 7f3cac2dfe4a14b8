"""The drivers as fixtures.

A test that asks for one is skipped, with the reason, where it cannot run.
"""

from __future__ import annotations

import pytest

from bench.real.drivers import ROCKETMQ_VERSIONS, DriverUnavailable, RocketDriver, TubeDriver


@pytest.fixture(scope="session")
def tube() -> TubeDriver:
    try:
        return TubeDriver()
    except DriverUnavailable as reason:
        pytest.skip(str(reason))


def rocket_of(version: str) -> RocketDriver:
    """Return the driver of one version, for tests that use several in turns."""
    try:
        return RocketDriver(version)
    except DriverUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session", params=ROCKETMQ_VERSIONS)
def rocket(request: pytest.FixtureRequest) -> RocketDriver:
    return rocket_of(request.param)
