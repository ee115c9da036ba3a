"""The rules of vLLM V1's scheduler written a second time, as plainly as they can be.

Nothing is shared with ``sim/``: every block is an object, every token has its content, every step looks at
every request. The rules are those of vLLM 0.32 with one full-attention KV group:

S1  Running requests first, in queue order, until the token budget is used.
S2  Who gets no blocks preempts: ``fcfs`` the last of the running ones; ``priority`` the one with the largest
    (priority, arrival), whose tokens go back to the budget. A victim starts over; if it is the request itself,
    the pass ends. (Of true equals vLLM takes the one admitted first, and may go round in circles; its clock is
    too fine for equals. Here arrivals at one instant come in order.)
S3  Waiting requests only if nobody was preempted, in order, up to the first that does not fit.
S4  At an admission the longest run of cached full blocks counts as computed, never the last known token.
S5  A full block is findable once the step that fills it is composed. Blocks come back last first; those that
    cannot be found to the front of the free queue, the others to its back; one takes from the front.
S6  A request emits a token when all its known tokens are computed.
A1  Asynchronously, up to two batches are composed and not applied; composing and applying take no time.
A2  An empty batch takes no time (synchronously: the base cost).
A3  A token sampled but not applied is ``pending``; it counts as known when tokens are wished for.
A4  Whose last token is pending is passed over, if ``max_tokens`` tells; with a stop token it is computed once
    more (A5).
A6  Outputs are applied in scheduling order; a finished request's are dropped, a preempted one's come late.
A7  Preemption forgets what is computed and pending, and frees all blocks, at once.
A8  Only blocks of known tokens are findable: what is known when composing, more when outputs are applied.
A9  Admission counts known tokens only.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

Json = dict[str, Any]


class Block:
    def __init__(self) -> None:
        self.key: object = None
        self.holders = 0


class Pool:
    """All blocks; the free ones in the order in which they will be taken."""

    def __init__(self, blocks: int) -> None:
        self.free: OrderedDict[Block, None] = OrderedDict((Block(), None) for _ in range(blocks))
        self.findable: dict[object, OrderedDict[Block, None]] = {}

    def find(self, key: object) -> Block | None:
        return next(iter(self.findable.get(key, ())), None)

    def publish(self, block: Block, key: object) -> None:
        block.key = key
        self.findable.setdefault(key, OrderedDict())[block] = None

    def share(self, block: Block) -> None:
        if block.holders == 0:
            del self.free[block]
        block.holders += 1

    def take(self) -> Block:
        block, _ = self.free.popitem(last=False)
        if block.key is not None:
            del self.findable[block.key][block]
            block.key = None
        block.holders = 1
        return block

    def give_back(self, blocks: list[Block]) -> None:
        for block in reversed(blocks):
            block.holders -= 1
            if block.holders == 0:
                self.free[block] = None
                if block.key is None:
                    self.free.move_to_end(block, last=False)


class Sequence:
    """One request."""

    keys: dict[object, int] = {}  # noqa: RUF012 - chained content of a block -> its number, the same in every run

    def __init__(self, row: Json, rank: int, block_size: int) -> None:
        self.row, self.name, self.arrival = row, row["id"], row["arrival_us"]
        self.priority, self.rank = row.get("priority", 0), rank
        self.prompt = sum(length for _, length in row["prompt"])
        self.output = row["output_len"]
        self.max_tokens = row.get("max_tokens", self.output)
        self.known = self.prompt
        self.computed = self.pending = self.hashed = 0
        self.blocks: list[Block] = []
        self.started = self.finished = False
        self.emissions: list[int] = []
        self.chain = self._chain(block_size)

    def _chain(self, size: int) -> list[int]:
        content = [(segment, offset) for segment, length in self.row["prompt"] for offset in range(length)]
        content += [("out:" + self.name, offset) for offset in range(self.output)]
        chain: list[int] = []
        for start in range(0, len(content) - size + 1, size):
            link = (chain[-1] if chain else None, tuple(content[start : start + size]))
            chain.append(self.keys.setdefault(link, len(self.keys)))
        return chain


class Batch:
    def __init__(self, step: Json, start: int, end: int, tokens: dict[Sequence, int]) -> None:
        self.step, self.start, self.end, self.tokens = step, start, end, tokens
        self.sampling: set[Sequence] = set()
        self.stale: set[Sequence] = set()


class Reference:
    """One run of one case, in the schema of the step logs."""

    def __init__(self, case: Json) -> None:
        self.config, self.cost = case["config"], case["step_cost_us"]
        self.size = self.config["block_size"]
        self.depth = 2 if self.config.get("async_scheduling") else 1
        self.pool = Pool(self.config["num_gpu_blocks"] - 1)
        self.all = [Sequence(row, rank, self.size) for rank, row in enumerate(case["requests"])]
        self.coming = deque(sorted(self.all, key=lambda sequence: (sequence.arrival, sequence.rank)))
        self.running, self.waiting = list[Sequence](), list[Sequence]()
        self.queue: deque[Batch] = deque()
        self.now = self.device_free = self.preemptions = 0
        self.steps: list[Json] = []

    def run(self) -> tuple[list[Json], Json]:
        while True:
            if not (self.running or self.waiting or self.queue):
                if not self.coming:
                    break
                self.now = max(self.now, self.coming[0].arrival)
            arrived = self._poll()
            if self.running or self.waiting:
                assert len(self.steps) < 50_000, "the rules go round in circles"
                batch = self._compose(arrived)
                self.queue.append(batch)
                if len(self.queue) < self.depth:
                    continue
            batch = self.queue.popleft()
            self.now = max(self.now, batch.end)
            self._apply(batch)
        requests = {
            s.name: {"first_token_us": s.emissions[0], "last_token_us": s.emissions[-1]} for s in self.all
        }
        return self.steps, {"steps": len(self.steps), "preemptions": self.preemptions, "requests": requests}

    def _poll(self) -> list[str]:
        arrived: list[str] = []
        while self.coming and self.coming[0].arrival <= self.now:
            sequence = self.coming.popleft()
            arrived.append(sequence.name)
            self.waiting.append(sequence)
        self._order_waiting()
        return arrived

    def _order_waiting(self) -> None:
        if self.config["policy"] == "priority":
            self.waiting.sort(key=lambda sequence: (sequence.priority, sequence.arrival, sequence.rank))

    def _compose(self, arrived: list[str]) -> Batch:
        self.budget = self.config["max_num_batched_tokens"]
        self.tokens, self.victims = dict[Sequence, int](), list[Sequence]()
        admitted: Json = {"new": [], "resumed": [], "hits": {}}
        self._continue_running()
        while not self.victims and self.waiting and self.budget > 0:
            if len(self.running) >= self.config["max_num_seqs"] or not self._admit(self.waiting[0]):
                break
            sequence = self.waiting.pop(0)
            admitted["resumed" if sequence.started else "new"].append(sequence.name)
            sequence.started = True
            self.running.append(sequence)
            if sequence.computed:
                admitted["hits"][sequence.name] = sequence.computed
        total = sum(self.tokens.values())
        context = sum(sequence.computed + count for sequence, count in self.tokens.items())
        base, per_token, per_context = self.cost.values()
        spent = base + per_token * total + per_context * context // 1000
        start = max(self.now, self.device_free)
        self.device_free = end = start + (spent if total or self.depth == 1 else 0)
        step = {
            "step": len(self.steps), "t_compose_us": self.now, "t_us": start, "dt_us": end - start, "arrived": arrived,
            "scheduled": [[s.name, count, s.computed, len(s.blocks)] for s, count in self.tokens.items()],
            **admitted, "preempted": sorted(s.name for s in self.victims), "running": [s.name for s in self.running],
            "waiting": [s.name for s in self.waiting], "free_after_schedule": len(self.pool.free),
        }  # fmt: skip
        self.steps.append(step)
        batch = Batch(step, start, end, self.tokens)
        for sequence, count in self.tokens.items():
            sequence.computed += count
            if sequence.computed == sequence.known + sequence.pending:
                sequence.pending += 1
                batch.sampling.add(sequence)
        return batch

    def _capped(self, count: int) -> int:
        cap = self.config["long_prefill_token_threshold"]
        return min(count, cap) if cap and len(self.running) + len(self.waiting) > 1 else count

    def _continue_running(self) -> None:
        position = 0
        while position < len(self.running) and self.budget > 0:
            sequence = self.running[position]
            position += 1
            ahead = sequence.computed + 2 - sequence.pending
            if sequence.pending and ahead >= sequence.prompt + sequence.max_tokens:
                continue
            count = self._capped(sequence.known + sequence.pending - sequence.computed)
            count = min(count, self.budget, self.config["max_model_len"] - 1 - sequence.computed)
            if count <= 0:
                continue
            while not self._allocate(sequence, sequence.computed + count):
                victim = self._victim()
                if self.running.index(victim) < position - 1:
                    position -= 1
                self._preempt(victim)
                if victim is sequence:
                    return
            self.tokens[sequence] = count
            self.budget -= count

    def _victim(self) -> Sequence:
        if self.config["policy"] == "priority":
            return max(
                self.running, key=lambda sequence: (sequence.priority, sequence.arrival, sequence.rank)
            )
        return self.running[-1]

    def _preempt(self, victim: Sequence) -> None:
        self.preemptions += 1
        self.victims.append(victim)
        self.budget += self.tokens.pop(victim, 0)
        self.running.remove(victim)
        self.pool.give_back(victim.blocks)
        victim.blocks, victim.hashed, victim.computed, victim.pending = [], 0, 0, 0
        for batch in self.queue:
            if victim in batch.sampling:
                batch.stale.add(victim)
        self.waiting.insert(0, victim)
        self._order_waiting()

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def _allocate(self, sequence: Sequence, tokens: int) -> bool:
        missing = self._blocks_of(tokens) - len(sequence.blocks)
        if missing > len(self.pool.free):
            return False
        sequence.blocks.extend(self.pool.take() for _ in range(missing))
        self._publish(sequence, min(tokens, sequence.known))
        return True

    def _publish(self, sequence: Sequence, tokens: int) -> None:
        if self.config["enable_prefix_caching"]:
            for index in range(sequence.hashed, tokens // self.size):
                self.pool.publish(sequence.blocks[index], sequence.chain[index])
                sequence.hashed = index + 1

    def _admit(self, sequence: Sequence) -> bool:
        found: list[Block] = []
        if self.config["enable_prefix_caching"]:
            for key in sequence.chain[: (sequence.known - 1) // self.size]:
                block = self.pool.find(key)
                if block is None:
                    break
                found.append(block)
        cached = len(found) * self.size
        count = self._capped(sequence.known - cached)
        if count > self.budget and not self.config["enable_chunked_prefill"]:
            return False
        count = min(count, self.budget)
        whole = sequence.known if self.config["scheduler_reserve_full_isl"] else 0
        room = len(self.pool.free) - sum(block.holders == 0 for block in found)
        if self.running:
            room -= int(self.config["watermark"] * self.config["num_gpu_blocks"])
        if self._blocks_of(max(cached + count, whole)) - len(found) > room:
            return False
        for block in found:
            self.pool.share(block)
        sequence.blocks, sequence.hashed, sequence.computed = found, len(found), cached
        self._allocate(sequence, cached + count)
        self.tokens[sequence] = count
        self.budget -= count
        return True

    def _apply(self, batch: Batch) -> None:
        emitted, finished, wasted = list[str](), list[str](), list[str]()
        for sequence in batch.tokens:
            if sequence.finished:
                wasted.append(sequence.name)
                continue
            if sequence not in batch.sampling:
                continue
            sequence.known += 1
            sequence.emissions.append(batch.end)
            emitted.append(sequence.name)
            if sequence not in batch.stale:
                sequence.pending -= 1
                if self.depth > 1:
                    self._publish(sequence, sequence.computed - sequence.pending)
            if sequence.known == sequence.prompt + sequence.output:
                sequence.finished = True
                finished.append(sequence.name)
                self.pool.give_back(sequence.blocks)
                sequence.blocks = []
                (self.waiting if sequence in batch.stale else self.running).remove(sequence)
        late = [sequence.name for sequence in batch.tokens if sequence in batch.stale]
        batch.step |= {"emitted": emitted, "finished": finished, "late": late, "wasted": wasted,
                       "free_after_step": len(self.pool.free)}  # fmt: skip
