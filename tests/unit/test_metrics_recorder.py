"""What steps and ends add to a core's published words, against a model row by row."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from tpc_server.boundary.server_args import MetricsConfig
from tpc_server.metrics.layout import LABEL_BYTES, MAX_SERIES, OTHER, Layout, read_label
from tpc_server.metrics.recorder import SERIES, Recorder
from tpc_server.stages.stream import DONE, STREAM

MS = 1_000_000
LENGTH = {"type": "length", "length": 3}
ABORT = {"type": "abort", "message": "Aborted"}


class Frames:
    """A recorder, and steps for it."""

    def __init__(self, prefill=False, **config):
        self.layout = Layout(MetricsConfig(**{"labels": {"model_name": "m"}, **config}))
        self.words = [0] * (self.layout.words + 16)
        self.recorder = Recorder(self.layout, self.words, 16, prefill)
        self.same = (None, None)
        self.serial = 0

    def stream(self, is_stream=True, created=0, label="", structured=False, recorded=True):
        self.serial += 1
        rid = f"r{self.serial}"
        stream = SimpleNamespace(rid=rid, hot=[0] * (STREAM + 1), meter=None)
        if recorded:
            stream.meter = self.recorder.open(rid, label, is_stream, created, structured)
        self.same = (None, None)
        return stream

    def leave(self, stream):
        self.recorder.forget(stream.rid)
        self.same = (None, None)

    def step(self, now, *rows, latency=None):
        """Rows are (stream, tokens, finish); as the step loop has it, one list for equal rids."""
        rids = [row[0] if isinstance(row[0], str) else row[0].rid for row in rows]
        if self.same[0] != rids:
            self.same = (rids, [object()] * len(rids))
        batch = SimpleNamespace(
            n=len(rows), rids=rids[:], tok_lens=[row[1] for row in rows],
            finish_reasons=[row[2] if len(row) > 2 else None for row in rows],
            prompt_tokens=[7] * len(rows), cached_tokens=[2] * len(rows),
            row_decode_latency=lambda row: latency, row_ended_outside=lambda row: False,
        )  # fmt: skip
        self.recorder.step(batch, self.same[1], now)
        for row, (stream, tokens, *finish) in enumerate(rows):
            if isinstance(stream, str):
                continue
            if finish and finish[0] is not None:
                if stream.meter is not None:
                    self.recorder.ended(stream, batch, row, now)
                self.leave(stream)
            stream.hot[DONE] += tokens

    def histogram(self, one, series=0, streaming=False):
        """(total, sum, {bucket bound: count}) of what is not zero."""
        layout = self.layout
        at = 16 + layout.series_at + series * layout.series_words + one.at
        at += layout.stream_words if streaming else 0
        bounds = (*one.bounds, float("inf"))
        counts = {b: self.words[at + k] for k, b in enumerate(bounds) if self.words[at + k]}
        return sum(counts.values()), self.words[at + one.sum_at], counts

    def counter(self, offset, series=0, streaming=False):
        at = 16 + self.layout.series_at + series * self.layout.series_words + offset
        return self.words[at + (self.layout.stream_words if streaming else 0)]


def test_even_steps_count_every_row_once_with_one_interval():
    f = Frames()
    a, b = f.stream(created=0), f.stream(created=10 * MS)
    f.step(50 * MS, (a, 1), (b, 1))
    f.step(53 * MS, (a, 1), (b, 1))
    f.step(70 * MS, (a, 1), (b, 1))
    assert f.histogram(f.layout.first_token, streaming=True) == (2, 90 * MS, {0.1: 2})
    assert f.histogram(f.layout.inter_token) == (4, 40 * MS, {0.004: 2, 0.020: 2})


def test_a_row_of_several_tokens_is_as_many_shorter_intervals():
    f = Frames()
    a = f.stream()
    f.step(10 * MS, (a, 1))
    f.step(22 * MS, (a, 4))
    assert f.histogram(f.layout.inter_token) == (4, 12 * MS, {0.004: 4})


def test_a_pause_belongs_to_the_interval_it_is_in():
    f = Frames()
    a, b = f.stream(), f.stream()
    f.step(10 * MS, (a, 1), (b, 1))
    f.step(11 * MS, (a, 1), (b, 0))  # no tokens: its interval goes on
    f.step(12 * MS, (a, 1))  # no row at all
    f.step(15 * MS, (a, 1), (b, 1))
    assert f.histogram(f.layout.inter_token) == (4, 10 * MS, {0.002: 2, 0.004: 1, 0.006: 1})


def test_rows_of_other_cores_and_unrecorded_streams_do_not_count():
    f = Frames()
    a, quiet = f.stream(), f.stream(recorded=False)
    for now in (10, 11, 12):
        f.step(now * MS, ("other", 1), (a, 1), (quiet, 1))
    f.step(13 * MS, (a, 1), ("another", 1))
    assert f.histogram(f.layout.inter_token) == (3, 3 * MS, {0.002: 3})


def test_a_rid_that_is_named_twice_or_too_early_harms_nothing():
    f = Frames()
    a = f.stream()
    f.step(10 * MS, (a, 1), (a, 1), ("r2", 1))
    f.step(11 * MS, (a, 1), (a, 1), ("r2", 1))
    f.step(12 * MS, (a, 1), ("r2", 1))
    f.step(13 * MS, (a, 1), ("r2", 1))
    late = f.stream()
    assert late.rid == "r2"
    f.leave(late)
    f.leave(a)
    f.step(14 * MS, ("r3", 1))
    assert min(f.words) >= 0 and f.recorder._weights in ({}, {a.meter[SERIES]: 0})
    assert f.histogram(f.layout.inter_token)[1] == 3 * MS


def test_who_leaves_between_steps_is_not_counted_on():
    f = Frames()
    a, b = f.stream(), f.stream()
    f.step(10 * MS, (a, 1), (b, 1))
    f.leave(b)
    f.step(11 * MS, (a, 1), (b, 1))  # a row that was on its way
    f.step(12 * MS, (a, 1))
    assert f.histogram(f.layout.inter_token)[0] == 2
    assert not f.recorder._meters.keys() - {a.rid}


def test_the_last_row_counts_the_request():
    f = Frames()
    a = f.stream(structured=True, created=1 * MS)
    f.step(11 * MS, (a, 1))
    f.step(21 * MS, (a, 1))
    f.step(41 * MS, (a, 1, LENGTH))
    layout = f.layout
    assert f.counter(layout.prompt_tokens, streaming=True) == 7
    assert f.counter(layout.generation_tokens, streaming=True) == 3
    assert f.counter(layout.structured) == 1
    assert f.histogram(layout.e2e, streaming=True) == (1, 40 * MS, {0.1: 1})
    assert f.histogram(layout.per_token, streaming=True) == (1, 15 * MS, {0.015: 1})
    assert f.histogram(layout.prompt_histogram) == (1, 7, {100.0: 1})
    assert f.histogram(layout.uncached_histogram) == (1, 5, {100.0: 1})
    assert f.histogram(layout.generation_histogram) == (1, 3, {100.0: 1})
    assert f.histogram(layout.e2e)[0] == 0  # none that is not a stream


def test_a_queue_abort_is_not_recorded():
    f = Frames()
    a = f.stream()
    batch = SimpleNamespace(row_ended_outside=lambda row: True)
    f.recorder.ended(a, batch, 0, 5 * MS)
    assert [w for w in f.words if w] == [1]  # the number of series


def test_an_abort_has_no_first_token_and_no_time_per_token():
    f = Frames()
    a, b = f.stream(), f.stream()
    f.step(10 * MS, (a, 0, ABORT), (b, 1))
    f.step(20 * MS, (b, 1))
    f.step(30 * MS, (b, 1, ABORT))
    layout = f.layout
    assert f.histogram(layout.first_token, streaming=True)[0] == 1
    assert f.histogram(layout.per_token, streaming=True)[0] == 0
    assert f.histogram(layout.e2e, streaming=True)[0] == 2
    assert f.histogram(layout.inter_token)[0] == 2


def test_a_unary_request_in_one_row_takes_the_scheduler_s_word_for_its_first_token():
    f = Frames()
    a = f.stream(is_stream=False, created=100 * MS)
    f.step(400 * MS, (a, 5, LENGTH), latency=0.2)
    assert f.histogram(f.layout.first_token) == (1, 100 * MS, {0.1: 1})
    assert f.histogram(f.layout.per_token) == (1, 50 * MS, {0.06: 1})
    assert f.histogram(f.layout.inter_token)[0] == 0


@pytest.mark.parametrize("latency", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_nonsensical_latency_is_ignored(latency):
    f = Frames()
    a = f.stream(is_stream=False, created=100 * MS)
    f.step(400 * MS, (a, 5, LENGTH), latency=latency)
    assert f.histogram(f.layout.first_token)[1] == 300 * MS


def test_a_prefill_worker_has_no_tokens_times():
    f = Frames(prefill=True)
    a = f.stream()
    f.step(10 * MS, (a, 1))
    f.step(20 * MS, (a, 1, LENGTH))
    layout = f.layout
    assert f.histogram(layout.first_token, streaming=True)[0] == 0
    assert f.histogram(layout.inter_token)[0] == 0
    assert f.histogram(layout.e2e, streaming=True)[0] == 1


def test_numbers_of_any_size_fit_the_words():
    f = Frames()
    a = f.stream()
    f.words[16 + f.layout.series_at + f.layout.prompt_histogram.at] = (1 << 64) - 1
    batch = SimpleNamespace(
        row_ended_outside=lambda row: False, prompt_tokens=[1 << 70], cached_tokens=[-3],
        tok_lens=[1], finish_reasons=[LENGTH],
    )  # fmt: skip
    f.recorder.ended(a, batch, 0, 5 * MS)
    assert all(0 <= word < 1 << 64 for word in f.words)


def test_label_values_have_series_of_their_own_and_a_bound():
    f = Frames(labels={"model_name": "m", "team": ""}, priority_label=True)
    layout = f.layout
    assert layout.dynamic == ("team", "priority") and layout.max_series == MAX_SERIES
    a = f.stream(label=layout.label_text({"team": "x", "model_name": "forged"}, 3))
    b = f.stream(label=layout.label_text({"team": "y"}, None))
    f.step(1 * MS, (a, 1), (b, 1))
    f.step(2 * MS, (a, 1), (b, 1))
    f.step(9 * MS, (a, 1), (b, 1, LENGTH))
    assert f.histogram(layout.inter_token, 0)[0] == 2
    assert f.histogram(layout.inter_token, 1)[0] == 2
    assert f.histogram(layout.e2e, 1, True)[0] == 1
    at = 16 + layout.series_at
    assert layout.label_values(read_label(f.words, at)) == ["m", "x", "3"]
    assert layout.label_values(read_label(f.words, at + layout.series_words)) == ["m", "y", ""]
    for k in range(2 * MAX_SERIES):
        f.stream(label=layout.label_text({"team": f"t{k}"}, None))
    long = f.stream(label=layout.label_text({"team": "é" * LABEL_BYTES}, None))
    assert f.words[16] == MAX_SERIES
    last = at + (MAX_SERIES - 1) * layout.series_words
    assert long.meter[SERIES] == last and read_label(f.words, last) == OTHER
    assert layout.label_values(OTHER) == ["m", OTHER, OTHER]


def test_a_rebuilt_core_goes_on_with_its_words():
    f = Frames(labels={"team": ""})
    label = f.layout.label_text({"team": "x"}, None)
    first = f.stream(label=label)
    f.recorder = Recorder(f.layout, f.words, 16)
    assert f.stream(label=label).meter[SERIES] == first.meter[SERIES] and f.words[16] == 1


@pytest.mark.parametrize("seed", range(20))
def test_any_mix_of_rows_equals_the_model(seed):
    """Streams that come, go, pause and bring several tokens, in any order of steps."""
    rng = random.Random(seed)
    f = Frames()
    live, last = [], {}
    total = intervals = firsts = ended = 0
    now = 1000 * MS
    for _ in range(300):
        now += rng.choice([1, 3, 3, 3, 7, 30]) * MS
        if rng.random() < 0.1:
            live.append(f.stream(is_stream=rng.random() < 0.5, created=now - MS))
        rows = []
        if live and rng.random() < 0.02:  # a client that goes away
            f.leave(live.pop(rng.randrange(len(live))))
        uneven = rng.random() < 0.2
        for stream in list(live):
            if rng.random() < 0.03:
                continue
            tokens = rng.choice([0, 1, 1, 2, 5]) if uneven else 1
            finish = LENGTH if rng.random() < 0.03 else None
            rows.append((stream, tokens, finish))
            if stream.rid not in last:
                firsts += 1
                last[stream.rid] = now
            elif tokens:
                total += tokens
                intervals += now - last[stream.rid]
                last[stream.rid] = now
            if finish:
                ended += 1
                live.remove(stream)
        f.step(now, *rows)
    counted, summed, _ = f.histogram(f.layout.inter_token)
    assert (counted, summed) == (total, intervals)
    layout = f.layout
    assert sum(f.histogram(layout.first_token, streaming=s)[0] for s in (True, False)) == firsts
    assert sum(f.histogram(layout.e2e, streaming=s)[0] for s in (True, False)) == ended
