"""The graph, however it was put together, is the graph of its files: checked against the plain definition."""

from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.eventlog.dag import descending, is_ancestor
from floodmark.eventlog.forks import find_forks, identity_conflicts
from floodmark.eventlog.history import History
from floodmark.eventlog.transactions import EventKey, Transaction


def ident(n):
    return f"00000000-0000-7000-8000-{n:012d}"


@st.composite
def histories(draw):
    """Transactions with parents among the earlier ones, some of which are missing; now and then a cycle."""
    size = draw(st.integers(1, 14))
    made = []
    for n in range(size):
        parents = draw(st.lists(st.integers(0, n), max_size=3, unique=True))  # its own number: a cycle
        if draw(st.integers(0, 9)):
            parents = [p for p in parents if p != n]
        stream = draw(st.sampled_from("ab"))
        event = EventKey(ident(1000 + n), stream, "E")
        replica, time, base = draw(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)))
        decides = draw(st.sampled_from([None, ()]))
        above = tuple(ident(p) for p in parents)
        made.append(Transaction(ident(n), ident(500 + replica), above, str(time), {stream: base}, (event,), decides))
    present = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return [t for t, here in zip(made, present, strict=True) if here]


def ancestors(parents, one):
    found, pending = set(), list(parents.get(one, ()))
    while pending:
        other = pending.pop()
        if other in parents and other not in found:
            found.add(other)
            pending.extend(parents[other])
    return found


def plain_depths(transactions):
    parents = {t.id: t.parents for t in transactions}
    sound = {t: p for t, p in parents.items() if t not in ancestors(parents, t)}
    depths = {}
    while len(depths) < len(sound):
        for one, above in sound.items():
            present = [p for p in above if p in sound]
            if one not in depths and all(p in depths for p in present):
                depths[one] = 1 + max((depths[p] for p in present), default=-1)
    return depths


@settings(max_examples=100, deadline=None)
@given(histories(), st.data())
def test_depth_heads_and_order_follow_the_definition_in_whatever_pieces_files_arrive(transactions, data):
    depths = plain_depths(transactions)
    key = {t.id: (depths.get(t.id), t.created_at, t.replica, t.id) for t in transactions}
    order = sorted(depths, key=key.__getitem__)
    named = {p for t in transactions if t.id in depths for p in t.parents}
    arriving = data.draw(st.permutations(transactions))
    first = data.draw(st.integers(0, len(arriving)))
    history = History.of(arriving[:first])
    if data.draw(st.booleans()):
        history = History.restored([(t, history.graph.depth[t.id]) for t in history])
        arriving = [t for t in arriving if t.id not in history]
        first = 0
    while first < len(arriving):
        step = data.draw(st.integers(1, len(arriving) - first))
        history.extend(arriving[first : first + step])
        first += step
    assert history.graph.depth == depths
    assert history.order == order
    assert set(history.heads) == {t for t in depths if t not in named}
    assert history.graph.merges == sum(len(t.parents) > 1 for t in transactions if t.id in depths)
    assert history.cyclic == {t.id for t in transactions} - set(depths)
    dangling = {t.id: tuple(p for p in t.parents if p not in depths) for t in transactions if t.id in depths}
    assert history.graph.dangling() == {t: missing for t, missing in dangling.items() if missing}
    for stream in "ab":
        writers = [t for t in order if key[t] and any(x.id == t and x.streams == {stream} for x in transactions)]
        assert [t.id for t in history.writers(stream)] == writers
        assert [history.first_version(stream, t) for t in writers] == list(range(1, len(writers) + 1))


@settings(max_examples=100, deadline=None)
@given(histories())
def test_ancestry_forks_and_identities_follow_the_definition(transactions):
    history = History.of(transactions)
    sound = {t.id: t for t in history}
    parents = {one: t.parents for one, t in sound.items()}
    above = {one: ancestors(parents, one) for one in sound}
    pairs = [(one, other) for one in sound for other in sound if one != other]
    assert descending(history.graph, history.order, pairs) == {(a, b) for a, b in pairs if a in above[b]}
    assert all(is_ancestor(history.graph, a, of=b) == (a in above[b]) for a, b in pairs)
    concurrent = {(a, b) for a, b in pairs if a not in above[b] and b not in above[a]}
    merges = [(set(t.parents), t.streams) for t in sound.values() if t.decides is None and len(t.parents) > 1]
    expected = set()
    for stream in "ab":
        for base in range(4):
            group = [t.id for t in sound.values() if t.streams == {stream} and t.bases[stream] == base]
            decided = any(stream in streams and set(group) == covered for covered, streams in merges)
            forked = {a for a in group for b in group if (a, b) in concurrent}
            if forked and not decided:
                expected.add((stream, base, tuple(sorted(forked))))
    found = {(p.stream, p.base_version, p.transactions) for unit in find_forks(history) for p in unit}
    assert found == expected
    unknown = {t for t in sound if any(p not in sound for one in above[t] | {t} for p in sound[one].parents)}
    clashing = {
        sound[a].replica for a, b in concurrent if sound[a].replica == sound[b].replica and not {a, b} & unknown
    }
    assert {conflict.replica for conflict in identity_conflicts(history)} == clashing
    assert all(tuple(c.transactions) in concurrent for c in identity_conflicts(history))
