"""The load generator: a process of its own, so that a busy server does not slow it. Owner: it.

Reads its settings (one line of JSON) from stdin, then `drain` when no more requests shall begin.
Writes lines of JSON to stdout: `{"wrong": …}` at once, and `{"report": …}` as the last one.
Run by tests/stress/test_server_stress.py; the same seed gives every worker the same requests.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import traceback
from typing import Any

from tests.stress.client import Client, Config, Report
from tests.stress.clock import Awake
from tests.stress.mixture import SCENARIOS, Scenario, faulty
from tests.stress.wire import Gone, Wrong


class Load:
    """All workers of one run."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.report = Report()
        self.stopping = False
        self.clock = Awake()

    async def run(self) -> None:
        """Until the time is up, or nothing more may begin."""
        ticking = asyncio.create_task(self._tick())
        await asyncio.gather(*[self._worker(k) for k in range(self.config.workers)])
        ticking.cancel()

    async def _tick(self) -> None:
        while True:
            self.clock.look()
            await asyncio.sleep(0.05)

    async def _limited(self, doing: asyncio.Task[None]) -> None:
        """Wait for a scenario; TimeoutError after so many seconds awake."""
        end = self.clock.seconds + self.config.limit
        while not (await asyncio.wait([doing], timeout=1.0))[0]:
            if self.clock.seconds > end:
                doing.cancel()
                raise TimeoutError(f"not over after {self.config.limit:.0f} s")
        doing.result()

    async def _worker(self, index: int) -> None:
        client = Client(self.config, index, self.report)
        scenarios, weights = list(SCENARIOS), list(SCENARIOS.values())
        if self.config.at_random:
            weights[scenarios.index(faulty)] = 0
        if self.config.only:
            scenarios = [s for s in scenarios if s.__name__ == self.config.only]
            weights = [1]
        while not self.stopping and self.clock.seconds < self.config.seconds:
            scenario = client.rng.choices(scenarios, weights)[0]
            client.begin(scenario.__name__)
            self.report.count(f"scenario {client.doing}")
            begun = time.monotonic()
            try:
                await self._limited(asyncio.create_task(_play(scenario, client)))
                client.over()
            except Gone as gone:  # no connection was to be had
                client.loose("refused", time.monotonic(), str(gone))
                await asyncio.sleep(0.05)
            except (Wrong, TimeoutError) as error:
                await self._wrong(client, repr(error), begun)
            except Exception:
                await self._wrong(client, traceback.format_exc(), begun)

    async def _wrong(self, client: Client, text: str, begun: float) -> None:
        """Tell the test, unless the machine stood still meanwhile: then no time-out is wrong."""
        await asyncio.sleep(0.2)
        if self.clock.paused_since(begun):
            self.report.count("around a pause")
        else:
            say({"wrong": f"worker {client.index} {client.doing}: {text}"})

    def listen(self) -> None:
        """Body of a thread: orders of the test."""
        for line in sys.stdin:
            if line.strip() == "drain":
                self.stopping = True


async def _play(scenario: Scenario, client: Client) -> None:
    await scenario(client, await client.open())


def say(what: dict[str, Any]) -> None:
    """One line to the test."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the load that stdin describes."""
    load = Load(Config(json.loads(sys.stdin.readline())))
    threading.Thread(target=load.listen, daemon=True).start()
    asyncio.run(load.run())
    report = load.report
    say({"report": {"counts": report.counts, "loose": report.loose}})


if __name__ == "__main__":
    main()
