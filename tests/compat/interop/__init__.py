"""The real TubeMQ and RocketMQ classes beside ours; see README.md."""

import pytest

pytest.register_assert_rewrite("tests.compat.interop.rocket_book")
