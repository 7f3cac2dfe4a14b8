"""The drivers as fixtures.

A test that asks for one is skipped, with the reason, where it cannot run.
"""

from __future__ import annotations

import pytest

from tests.interop.drivers import ROCKETMQ_VERSIONS, DriverUnavailable, RocketDriver, TubeDriver


@pytest.fixture(scope="session")
def tube() -> TubeDriver:
    try:
        return TubeDriver()
    except DriverUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session", params=ROCKETMQ_VERSIONS)
def rocket(request: pytest.FixtureRequest) -> RocketDriver:
    try:
        return RocketDriver(request.param)
    except DriverUnavailable as reason:
        pytest.skip(str(reason))
