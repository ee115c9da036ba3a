"""A radix tree of what sequences begin with: nodes of pages, locked while in use, evicted leaf by leaf."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..engine.request import Request


class Node:
    """The pages from ``start`` to ``stop`` of every sequence that goes through here.

    Attributes
    ----------
    key : what leads here from ``parent``
    keys : content keys of a sequence through here, page by page; None: pages of one request that nobody shares
    locks : requests in use that hold these pages
    used : when they were asked for last, as a count of uses
    """

    __slots__ = ("children", "key", "keys", "locks", "parent", "start", "stop", "used")

    def __init__(
        self, parent: Node | None, key: int | Request, keys: Sequence[int] | None, start: int, stop: int, locks: int,
        used: int,
    ) -> None:  # fmt: skip
        self.parent = parent
        self.key = key
        self.keys = keys
        self.start, self.stop = start, stop
        self.locks, self.used = locks, used
        self.children: dict[int | Request, Node] = {}

    def __len__(self) -> int:
        return self.stop - self.start

    def onward(self, request: Request) -> int | Request:
        """Return what leads from here to the next page of a request: its content, or itself where none is shared."""
        keys = request.block_hashes
        return keys[self.stop] if self.stop < len(keys) else request

    def agrees(self, request: Request, limit: int) -> int:
        """Return up to which page, ``limit`` at most, a request whose first page here agrees goes along.

        Keys are chained: where two agree, all before them do.
        """
        stop = min(self.stop, limit)
        if self.keys is None:
            return stop
        keys, low, high = request.block_hashes, self.start + 1, min(stop, len(request.block_hashes))
        while low < high:
            middle = (low + high + 1) // 2
            if keys[middle - 1] == self.keys[middle - 1]:
                low = middle
            else:
                high = middle - 1
        return low


class PrefixTree:
    """Pages of sequences in use and of those that were, shared as far as they agree.

    Source: SGLang ``RadixCache`` (Zheng et al., NeurIPS 2024): a node is split where sequences part, the least
    recently used leaf is evicted first and as a whole, and a parent becomes a leaf after its last child.

    Attributes
    ----------
    unlocked : pages that may be evicted [pages]
    """

    def __init__(self) -> None:
        self.root = Node(None, 0, (), 0, 0, 1, 0)
        self.unlocked = 0
        self._uses = 0
        self._entries = 0
        self._leaves: list[tuple[int, int, Node]] = []

    def match(self, request: Request, limit: int) -> tuple[int, int]:
        """Return the leading pages of a request that are here, ``limit`` at most, and those of them unlocked."""
        node, unlocked = self.root, 0
        while node.stop < limit and (child := node.children.get(node.onward(request))):
            stop = child.agrees(request, limit)
            if not child.locks:
                unlocked += stop - child.start
            if stop < child.stop:
                return stop, unlocked
            node = child
        return min(node.stop, limit), unlocked

    def lock(self, request: Request, pages: int) -> Node:
        """Lock the leading pages of a request, which are here, and return the last node of them."""
        node = self.root
        while node.stop < pages:
            node = self._enter(node.children[node.onward(request)], request, pages)
        self._use(node)
        return node

    def extend(self, node: Node, request: Request, pages: int) -> tuple[Node, int]:
        """Put in the pages of a request beyond its locked ``node``, up to ``pages``, and lock them.

        Returns
        -------
        The last node, and how many of the pages were here already.
        """
        already = 0
        while node.stop < pages:
            key = node.onward(request)
            child = node.children.get(key)
            if child is None:
                child = self._grown(node, key, request, pages)
            else:
                start = child.start
                child = self._enter(child, request, pages)
                already += child.stop - start
            node = child
        self._use(node)
        return node, already

    def unlock(self, node: Node) -> None:
        """Let go of all pages up to ``node``."""
        above: Node | None = node
        while above is not None and above is not self.root:
            above.locks -= 1
            if not above.locks:
                self.unlocked += len(above)
                self._offer(above)
            above = above.parent

    def evict(self) -> int:
        """Forget the leaf that was used longest ago, and return its pages [pages]."""
        while True:
            used, _, node = heappop(self._leaves)
            if node.parent is not None and used == node.used and not node.locks and not node.children:
                break
        parent = node.parent
        del parent.children[node.key]
        node.parent = None
        self.unlocked -= len(node)
        if parent is not self.root and not parent.locks:
            self._offer(parent)
        return len(node)

    def _grown(self, node: Node, key: int | Request, request: Request, pages: int) -> Node:
        """Hang the next pages of a request under ``node``, locked: those it may share, else those it does not."""
        keys = request.block_hashes
        shared = node.stop < len(keys)
        stop = min(pages, len(keys)) if shared else pages
        child = Node(node, key, keys if shared else None, node.stop, stop, 1, self._uses)
        node.children[key] = child
        return child

    def _enter(self, child: Node, request: Request, pages: int) -> Node:
        """Lock a child as far as a request goes along with it, splitting it there."""
        stop = child.agrees(request, pages)
        if stop < child.stop:
            child = self._split(child, stop)
        if not child.locks:
            self.unlocked -= len(child)
        child.locks += 1
        return child

    def _split(self, child: Node, stop: int) -> Node:
        """Put a node above ``child`` that takes its pages up to ``stop``; return it."""
        parent, key = child.parent, child.key
        assert parent is not None
        head = parent.children[key] = Node(
            parent, key, child.keys, child.start, stop, child.locks, child.used
        )
        child.key = key if child.keys is None else child.keys[stop]
        child.parent, child.start = head, stop
        head.children[child.key] = child
        return head

    def _use(self, node: Node) -> None:
        self._uses += 1
        above: Node | None = node
        while above is not None:
            above.used = self._uses
            above = above.parent

    def _offer(self, node: Node) -> None:
        """Enter a node among the leaves to be evicted, if it is one."""
        if not node.children:
            self._entries += 1
            heappush(self._leaves, (node.used, self._entries, node))
