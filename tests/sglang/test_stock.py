"""SGLang's own frontends, with our package beside them: as without us. Owner: pytest."""

from __future__ import annotations

import json

import pytest

from tests.e2e.parity_replay import differences
from tests.http_client import Client
from tests.sglang.record import DATA, answers
from tests.sglang.test_answers import same

pytestmark = [
    pytest.mark.sglang, pytest.mark.full, pytest.mark.network, pytest.mark.timeout(900),
]  # fmt: skip


@pytest.mark.parametrize("frontend", ["rust", "python"])
def test_they_are_left_alone(serve, frontend):
    recorded = json.loads((DATA / f"{frontend}.json").read_text("utf-8"))["generated"]
    with serve(frontend).wait() as sglang:
        assert sglang.frontends() == []
        with Client(sglang.address, timeout=60) as client:
            assert client.call("GET", "/server_info").json().get("frontend") != "tpc"
        found = answers(sglang, ours=False)
    wrong = [d for d in differences(found, recorded) if not same(*d[1:])]
    assert wrong == []
